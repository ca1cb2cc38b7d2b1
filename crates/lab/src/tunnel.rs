//! Link of two tun devices: packets without Ethernet headers, with the offloads of a tunnel in the kernel.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::topology::set_up;
use crate::{Error, Namespace, tool};

/// Room for the longest super-packet and the header in which the kernel describes it (`IFF_VNET_HDR`).
const ROOM: usize = 66_000;

/// Length of a device's queue in packets: no burst of a TCP is lost there.
const TX_QUEUE_LEN: u32 = 4000;

/// End of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct TunnelEnd<'a> {
    /// Namespace of the device.
    pub namespace: &'a Namespace,
    /// Name of the device.
    pub device: &'a str,
    /// Address of the device, in a network of its own: a /24, or a /64.
    pub addr: IpAddr,
}

/// Two tun devices in different namespaces, and a thread that carries packets between them. The devices go with this
/// value.
#[derive(Debug)]
pub struct Tunnel {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Tunnel {
    /// Makes the devices with this MTU in bytes, and sets them up. With `offloads`, packets may be super-packets whose
    /// checksums are not filled in; without them each is one segment.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Tool`] when a device cannot be made.
    pub fn between(ends: [TunnelEnd<'_>; 2], mtu: u16, offloads: bool) -> Result<Tunnel, Error> {
        let [near, far] = ends;
        let devices = [open(near, mtu, offloads)?, open(far, mtu, offloads)?];
        for TunnelEnd {
            namespace,
            device,
            addr,
        } in ends
        {
            tool::ip_batch(&["-n", namespace.name()], &set_up(device, [addr]))?;
        }
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| Error::io("make an eventfd")(errno.into()))?;
        let stop = Arc::new(stop);
        let until = stop.clone();
        let thread = thread::Builder::new()
            .name("tunnel".to_owned())
            .spawn(move || carry(&devices, &until))
            .map_err(Error::io("start a thread"))?;
        Ok(Tunnel {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        // The first write to an eventfd always succeeds.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn open(end: TunnelEnd<'_>, mtu: u16, offloads: bool) -> Result<SyncDevice, Error> {
    let TunnelEnd {
        namespace, device, ..
    } = end;
    let build = || {
        let builder = DeviceBuilder::new().name(device).layer(Layer::L3);
        let builder = builder.mtu(mtu).enable(false).with(|options| {
            options.tx_queue_len(TX_QUEUE_LEN).offload(offloads);
        });
        let tun = builder.build_sync()?;
        tun.set_nonblocking(true)?;
        Ok(tun)
    };
    let tun = namespace.run(build)?;
    tun.map_err(Error::io(format!("make the tun {device}")))
}

/// Carries packets until told to stop. A packet that the other device does not take is lost, as on any link.
fn carry(devices: &[SyncDevice; 2], stop: &OwnedFd) {
    let mut packet = vec![0; ROOM];
    loop {
        let mut fds = [
            PollFd::new(stop, PollFlags::IN),
            PollFd::new(&devices[0], PollFlags::IN),
            PollFd::new(&devices[1], PollFlags::IN),
        ];
        let polled = poll(&mut fds, None);
        let is = |at: usize, flag| fds[at].revents().contains(flag);
        if polled.is_ok() && (is(0, PollFlags::IN) || is(1, PollFlags::ERR) || is(2, PollFlags::ERR)) {
            return;
        }
        for (from, to) in [(&devices[0], &devices[1]), (&devices[1], &devices[0])] {
            // Each direction has its turn.
            for _ in 0..64 {
                let Ok(len) = from.recv(&mut packet) else { break };
                let _ = to.send(&packet[..len]);
            }
        }
    }
}
