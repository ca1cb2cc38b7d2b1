//! Receives segments.

use longsplice_model::{Segment, flag};

use super::{FORGED, MS, Run, Tcp, Time};

/// Least time between two answers to segments without data that are out of the window, as in Linux
/// (tcp_invalid_ratelimit).
const OUT_OF_WINDOW: Time = 500 * MS;
const DELAYED_ACK: Time = 40 * MS;

impl Tcp {
    /// Selects the window (`tcp_select_window`): it never shrinks, and opens only by a worthwhile amount.
    pub(super) fn select_window(&mut self) -> i64 {
        let limit = 65_535 << self.config.our_scale;
        let early: i64 = self.early.values().map(|r| r.len).sum();
        let mut free = (self.config.room - self.unread - early).max(0);
        if free < (self.config.room / 4).min(self.config.mss) {
            free = 0;
        }
        let unit = 1 << self.config.our_scale;
        let offered = (self.rcv_edge - self.rcv_nxt + unit - 1).max(0) / unit * unit;
        self.rcv_edge = self.rcv_nxt + self.room_in_units(free).min(limit).max(offered);
        self.rcv_edge
    }

    pub(super) fn put_sack(&self, segment: &mut Segment) {
        let mut blocks: Vec<(i64, i64)> = Vec::new();
        for (&start, run) in &self.early {
            match blocks.last_mut() {
                Some(last) if last.1 == start => last.1 = start + run.len,
                _ => blocks.push((start, start + run.len)),
            }
        }
        // The block that changed last comes first (RFC 2018 section 4).
        if let Some(i) = blocks
            .iter()
            .position(|b| b.0 <= self.last_early && self.last_early < b.1)
        {
            blocks.swap(0, i);
        }
        for (left, right) in blocks.into_iter().take(3) {
            segment.sack.push(self.rcv_seq(left), self.rcv_seq(right));
        }
    }

    /// Returns whether bytes wait for others before them.
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns the bytes that user space may read now; at most `max` bytes.
    pub fn read(&mut self, now: Time, max: i64, out: &mut Vec<Segment>) -> Vec<Run> {
        let mut runs = Vec::new();
        let mut left = max;
        while left > 0 {
            let Some(run) = self.queue.pop_front() else { break };
            let take = run.len.min(left);
            runs.push(Run {
                at: run.at,
                len: take,
            });
            if take < run.len {
                self.queue.push_front(Run {
                    at: run.at + take as u64,
                    len: run.len - take,
                });
            }
            left -= take;
            self.unread -= take;
        }
        if self.unread == 0 && self.got_fin() && max > 0 {
            self.eof = true;
        }
        if max > left && !self.dead {
            self.tell_window(now, out);
        }
        runs
    }

    /// Announces that the window has opened, if by much (`tcp_cleanup_rbuf`).
    fn tell_window(&mut self, now: Time, out: &mut Vec<Segment>) {
        let offered = self.rcv_edge - self.rcv_nxt;
        let before = self.rcv_edge;
        let may = self.select_window() - self.rcv_nxt;
        self.rcv_edge = before;
        if may > 0 && may >= 2 * offered && (may - offered >= self.config.mss || offered == 0) {
            self.pure_ack(now, out);
        }
    }

    pub fn on_segment(&mut self, now: Time, s: &Segment, out: &mut Vec<Segment>) {
        if self.dead {
            out.extend(super::no_socket(s));
            return;
        }
        let old_edge = self.snd_edge;
        if self.is_acceptable(now, s, out) && self.on_ack(now, s, out) {
            self.on_data(now, s, out);
            if !self.dead {
                self.push_out(now, out);
            }
        }
        self.shrunk = self.shrunk.max(old_edge - self.snd_edge);
    }

    /// Validates a segment: `tcp_validate_incoming` (RFC 7323 section 5, RFC 9293 section 3.10.7.4, RFC 5961).
    fn is_acceptable(&mut self, now: Time, s: &Segment, out: &mut Vec<Segment>) -> bool {
        let (seq, end) = (
            self.rcv_index(s.seq),
            self.rcv_index(s.seq) + i64::from(s.end() - s.seq),
        );
        if let (Some(ts), Some(recent)) = (s.ts, self.ts_recent)
            && self.config.timestamps
            && ts.val.before(recent)
            && !s.has(flag::RST)
        {
            self.refuse(now, s, out);
            return false;
        }
        let beyond = seq + i64::from(s.len) > self.rcv_edge.max(self.rcv_nxt);
        if end < self.rcv_wup || seq > self.rcv_edge.max(self.rcv_nxt) || (beyond && s.len > 0) {
            if !s.has(flag::RST) {
                if beyond && s.at < FORGED {
                    self.beyond_window += 1;
                }
                self.refuse(now, s, out);
            }
            return false;
        }
        if s.has(flag::RST) {
            if seq == self.rcv_nxt {
                self.dead = true;
                if s.at >= FORGED {
                    self.forged = Some("a forged reset");
                }
            } else {
                self.pure_ack(now, out);
            }
            return false;
        }
        if s.has(flag::SYN) {
            self.pure_ack(now, out);
            return false;
        }
        if let Some(ts) = s.ts
            && seq <= self.rcv_wup
            && s.at < FORGED
        {
            self.ts_recent = Some(self.ts_recent.map_or(ts.val, |r| r.max(ts.val)));
        }
        s.has(flag::ACK)
    }

    /// Sends an ACK for a segment that is not accepted.
    fn refuse(&mut self, now: Time, s: &Segment, out: &mut Vec<Segment>) {
        if s.len == 0 {
            if now < self.oow_at + OUT_OF_WINDOW && self.oow_at > 0 {
                return;
            }
            self.oow_at = now.max(1);
        }
        self.pure_ack(now, out);
    }

    fn on_data(&mut self, now: Time, s: &Segment, out: &mut Vec<Segment>) {
        if !s.occupies() {
            return;
        }
        let seq = self.rcv_index(s.seq);
        let end = seq + i64::from(s.len);
        if s.has(flag::FIN) {
            if s.at >= FORGED {
                self.forged = Some("a forged FIN");
            }
            self.fin_at = Some(end);
        }
        let mut at_once = false;
        let skip = (self.rcv_nxt - seq).max(0);
        if skip < i64::from(s.len) {
            let run = Run {
                at: s.at + skip as u64,
                len: i64::from(s.len) - skip,
            };
            if s.at >= FORGED {
                self.forged = Some("forged payload");
            }
            if self.config.is_end && run.at != (seq + skip) as u64 {
                self.forged = Some("payload at a wrong place of the stream");
            }
            at_once = !self.early.is_empty();
            if seq + skip == self.rcv_nxt {
                self.take(run);
            } else {
                self.keep_early(seq + skip, run);
                at_once = true;
            }
            self.take_early();
        } else if i64::from(s.len) > 0 {
            at_once = true;
        }
        if s.has(flag::FIN) && self.fin_at.is_some_and(|f| f < self.rcv_nxt) {
            at_once = true;
        }
        if self.fin_at == Some(self.rcv_nxt) {
            self.rcv_nxt += 1;
            at_once = true;
        }
        self.unacked += i64::from(s.len);
        if at_once || self.unacked >= 2 * self.config.mss || s.has(flag::FIN) {
            self.pure_ack(now, out);
        } else if self.delack_at.is_none() {
            self.delack_at = Some(now + DELAYED_ACK);
        }
    }

    fn take(&mut self, run: Run) {
        self.rcv_nxt += run.len;
        self.taken_to = run.at + run.len as u64;
        self.unread += run.len;
        match self.queue.back_mut() {
            Some(last) if last.at + last.len as u64 == run.at => last.len += run.len,
            _ => self.queue.push_back(run),
        }
    }

    /// Keeps bytes out of order; the bytes that are there already stay.
    fn keep_early(&mut self, mut seq: i64, mut run: Run) {
        self.last_early = seq;
        let held: Vec<(i64, i64)> = self.early.iter().map(|(&s, r)| (s, s + r.len)).collect();
        for (start, end) in held {
            if run.len <= 0 {
                return;
            }
            if end <= seq || start >= seq + run.len {
                continue;
            }
            if start > seq {
                self.early.insert(
                    seq,
                    Run {
                        at: run.at,
                        len: start - seq,
                    },
                );
            }
            let skip = end - seq;
            seq += skip;
            run.at = run.at.wrapping_add(skip as u64);
            run.len -= skip;
        }
        if run.len > 0 {
            self.early.insert(seq, run);
        }
    }

    fn take_early(&mut self) {
        while let Some((&start, &run)) = self.early.first_key_value() {
            if start > self.rcv_nxt {
                break;
            }
            self.early.pop_first();
            let skip = self.rcv_nxt - start;
            if skip < run.len {
                self.take(Run {
                    at: run.at + skip as u64,
                    len: run.len - skip,
                });
            }
        }
    }
}
