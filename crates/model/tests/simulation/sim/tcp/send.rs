//! Sends segments: processes acknowledgements, losses, timers.

use longsplice_model::{Segment, flag};

use super::{Run, Tcp, Time};

impl Tcp {
    /// Returns how much its buffer takes, or 0 if it was shut down.
    pub fn can_write(&self) -> i64 {
        if self.fin || self.dead {
            0
        } else {
            (self.config.send_room - (self.write - self.una)).max(0)
        }
    }

    pub fn write(&mut self, now: Time, run: Run, out: &mut Vec<Segment>) {
        match self.out.back_mut() {
            Some(last) if last.at + last.len as u64 == run.at => last.len += run.len,
            _ => self.out.push_back(run),
        }
        self.write += run.len;
        self.push_out(now, out);
    }

    /// Puts bytes into the send queue as if they had been sent (TCP_REPAIR). Nothing may be outstanding before.
    pub fn seed(&mut self, now: Time, runs: Vec<Run>) {
        for run in runs {
            self.write += run.len;
            self.out.push_back(run);
        }
        if self.write > self.nxt {
            self.nxt = self.write;
            self.rto_at = Some(now + self.config.rto);
        }
    }

    pub fn shutdown(&mut self, now: Time, out: &mut Vec<Segment>) {
        self.fin = true;
        self.push_out(now, out);
    }

    /// Returns the bytes that are not acknowledged, sent or not.
    pub fn unacknowledged(&self) -> i64 {
        self.write + i64::from(self.fin) - self.una
    }

    /// Returns the first byte that it may still have to retransmit, as a position of the stream.
    pub fn first_out(&self) -> Option<u64> {
        self.out.front().map(|r| r.at)
    }

    fn stream_end(&self) -> i64 {
        self.write + i64::from(self.fin)
    }

    /// Processes an acknowledgement (`tcp_ack`). Returns false if the segment is to be discarded with it.
    pub(super) fn on_ack(&mut self, now: Time, s: &Segment, out: &mut Vec<Segment>) -> bool {
        let ack = self.snd_index(s.ack);
        if ack < self.una - self.max_window.min(self.bytes_acked) {
            self.too_old += 1;
            self.pure_ack(now, out);
            return false;
        }
        if ack > self.nxt {
            return false;
        }
        let news = self.on_sack(s);
        if ack < self.una {
            self.after_sack(now, news, out);
            return true;
        }
        let seq = self.rcv_index(s.seq);
        let window = i64::from(s.window) << self.config.peer_scale;
        let current = self.snd_edge - self.una;
        let mut updated = false;
        if ack > self.una || seq > self.wl1 || (seq == self.wl1 && (window > current || window == 0)) {
            updated = ack + window != self.snd_edge;
            self.wl1 = seq;
            self.snd_edge = ack + window;
            self.max_window = self.max_window.max(window);
        }
        let advanced = ack - self.una;
        if advanced > 0 {
            self.acknowledged(now, ack, advanced);
        } else if !s.occupies() && !updated && self.una < self.nxt {
            self.dupacks += 1;
        }
        self.after_sack(now, news, out);
        if self.snd_edge > self.nxt || self.una < self.nxt {
            self.probe_at = None;
        }
        true
    }

    fn acknowledged(&mut self, now: Time, ack: i64, advanced: i64) {
        self.una = ack;
        self.bytes_acked += advanced;
        while let Some(run) = self.out.front_mut() {
            let gone = (ack - self.out_from).min(run.len);
            if gone <= 0 {
                break;
            }
            self.out_from += gone;
            run.at += gone as u64;
            run.len -= gone;
            if run.len == 0 {
                self.out.pop_front();
            }
        }
        self.sacked.retain(|b| b.1 > ack);
        self.dupacks = 0;
        self.backoff = 0;
        self.again = self.again.max(ack);
        if self.recover.is_some_and(|r| ack >= r) {
            self.recover = None;
            self.lost_to = ack;
        } else if self.recover.is_some() && self.again >= self.lost_to {
            // A partial acknowledgement shows the next hole (RFC 6582).
            self.again = ack;
            self.lost_to = ack + self.config.mss;
        }
        if self.recover.is_none() {
            self.cwnd += if self.cwnd < self.ssthresh {
                (advanced / self.config.mss).max(1)
            } else {
                1
            };
            self.cwnd = self.cwnd.min(1000);
        }
        self.rto_at = (ack < self.nxt).then_some(now + self.config.rto);
    }

    /// Processes SACK blocks; returns whether one of them has news.
    fn on_sack(&mut self, s: &Segment) -> bool {
        let mut news = false;
        for (left, right) in s.sack.iter() {
            let (left, right) = (self.snd_index(left), self.snd_index(right));
            if !self.config.sack || left >= right || right <= self.una {
                continue;
            }
            // The kernel discards the whole block.
            if right > self.nxt {
                self.sack_refused += 1;
                continue;
            }
            let left = left.max(self.una);
            if self.sacked.iter().any(|b| b.0 <= left && right <= b.1) {
                continue;
            }
            news = true;
            let (mut l, mut r) = (left, right);
            self.sacked.retain(|b| {
                let apart = b.1 < l || r < b.0;
                if !apart {
                    l = l.min(b.0);
                    r = r.max(b.1);
                }
                apart
            });
            self.sacked.push((l, r));
            self.sacked.sort_unstable();
        }
        news
    }

    fn after_sack(&mut self, now: Time, news: bool, out: &mut Vec<Segment>) {
        let above: i64 = self.sacked.iter().map(|b| b.1 - b.0).sum();
        let lost = self.dupacks >= 3 || above >= 3 * self.config.mss;
        if lost && self.recover.is_none() && self.una < self.nxt {
            self.recover = Some(self.nxt);
            self.ssthresh = (self.cwnd / 2).max(2);
            self.cwnd = self.ssthresh;
            self.again = self.una;
            self.lost_to = self.una + self.config.mss;
            self.dupacks = 0;
            self.rto_at = Some(now + self.config.rto);
        }
        if self.recover.is_some()
            && news
            && let Some(last) = self.sacked.last()
        {
            self.lost_to = self.lost_to.max(last.0);
        }
        let _ = out;
    }

    fn segment_of(&mut self, now: Time, from: i64, max: i64) -> Segment {
        let mut skip = from - self.out_from;
        let mut run = Run { at: 0, len: 0 };
        for r in &self.out {
            if skip < r.len {
                run = Run {
                    at: r.at + skip as u64,
                    len: (r.len - skip).min(max),
                };
                break;
            }
            skip -= r.len;
        }
        let last = self.fin && from + run.len == self.write && (self.nxt > self.write || from == self.nxt);
        let flags = if last { flag::FIN } else { 0 };
        let mut s = self.header(now, flags | if run.len > 0 { flag::PSH } else { 0 }, from);
        s.len = run.len as u32;
        s.at = run.at;
        s
    }

    fn segment_size(&self) -> i64 {
        self.config.mss.min((self.max_window / 2).max(64))
    }

    fn in_flight(&self) -> i64 {
        let sacked: i64 = self.sacked.iter().map(|b| b.1 - b.0).sum();
        let lost = if self.recover.is_some() {
            (self.lost_to.min(self.nxt) - self.again).max(0)
        } else {
            0
        };
        (self.nxt - self.una - sacked - lost).max(0)
    }

    pub(super) fn push_out(&mut self, now: Time, out: &mut Vec<Segment>) {
        if self.dead {
            return;
        }
        let budget = self.cwnd * self.config.mss;
        if self.recover.is_some() {
            self.send_again(now, budget, out);
        }
        let size = self.segment_size();
        while self.nxt < self.stream_end() {
            let rest = self.write - self.nxt;
            let len = rest.min(size);
            if self.nxt + len > self.snd_edge || self.in_flight() + len > budget.max(size) {
                break;
            }
            let s = self.segment_of(now, self.nxt, len);
            self.nxt += i64::from(s.end() - s.seq);
            out.push(s);
            if self.rto_at.is_none() {
                self.rto_at = Some(now + self.config.rto);
            }
        }
        if self.una == self.nxt {
            self.rto_at = None;
            if self.nxt < self.stream_end() && self.probe_at.is_none() {
                self.probe_at = Some(now + (self.config.rto << self.backoff.min(6)));
            }
        }
    }

    fn send_again(&mut self, now: Time, budget: i64, out: &mut Vec<Segment>) {
        let mut first = true;
        while self.again < self.lost_to.min(self.nxt) {
            if let Some(b) = self.sacked.iter().find(|b| b.0 <= self.again && self.again < b.1) {
                self.again = b.1;
                continue;
            }
            if !first && self.in_flight() >= budget {
                break;
            }
            first = false;
            let next = self
                .sacked
                .iter()
                .map(|b| b.0)
                .find(|&l| l > self.again)
                .unwrap_or(self.nxt);
            let len = (next.min(self.nxt) - self.again).min(self.segment_size());
            let s = self.segment_of(now, self.again, len);
            let took = i64::from(s.end() - s.seq);
            if took == 0 {
                break;
            }
            self.again += took;
            out.push(s);
        }
    }

    pub(super) fn on_rto(&mut self, now: Time, out: &mut Vec<Segment>) {
        self.rto_at = None;
        if self.una >= self.nxt {
            return;
        }
        self.timeouts += 1;
        self.backoff = (self.backoff + 1).min(7);
        self.ssthresh = (self.cwnd / 2).max(2);
        self.cwnd = 1;
        self.sacked.clear();
        self.recover = Some(self.nxt);
        self.again = self.una;
        self.lost_to = self.nxt;
        self.dupacks = 0;
        let s = self.segment_of(now, self.una, self.segment_size().min(self.nxt - self.una));
        self.again += i64::from(s.end() - s.seq);
        out.push(s);
        self.rto_at = Some(now + (self.config.rto << self.backoff));
    }

    /// Probes (`tcp_write_wakeup`) with the part of the next segment that fits, or with an old number.
    pub(super) fn on_probe(&mut self, now: Time, out: &mut Vec<Segment>) {
        self.probe_at = None;
        if self.una < self.nxt || self.nxt >= self.stream_end() {
            return;
        }
        let fits = (self.snd_edge - self.nxt).min(self.write - self.nxt);
        if fits > 0 {
            let s = self.segment_of(now, self.nxt, fits.min(self.segment_size()));
            self.nxt += i64::from(s.end() - s.seq);
            out.push(s);
            self.rto_at = Some(now + self.config.rto);
            return;
        }
        self.keepalive(now, out);
        self.backoff = (self.backoff + 1).min(4);
        self.probe_at = Some(now + (self.config.rto << self.backoff));
    }

    /// Sends a segment that the peer has to answer.
    pub fn keepalive(&mut self, now: Time, out: &mut Vec<Segment>) {
        if !self.dead {
            let s = self.header(now, 0, self.una - 1);
            out.push(s);
        }
    }
}
