//! TAP devices: the ends of an emulated link.

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::{Error, Namespace, tool};

/// Length of the device's own queue in packets. A burst of a TCP must wait in the emulated queue, where it is
/// counted, and must not be dropped before.
const TX_QUEUE_LEN: u32 = 4000;

/// Makes the TAP `device` in `namespace`, without offloads: the emulator must see the packets that a real wire would
/// carry, not the kernel's super-packets. The device lives as long as the returned handle, and is still down. Returns its
/// Ethernet address, too.
pub(super) fn open(namespace: &Namespace, device: &str, mtu: u16) -> Result<(SyncDevice, [u8; 6]), Error> {
    let opened = namespace
        .run(|| {
            let builder = DeviceBuilder::new()
                .name(device)
                .layer(Layer::L2)
                .mtu(mtu)
                .enable(false);
            let tap = builder.with(|options| {
                options.tx_queue_len(TX_QUEUE_LEN);
            });
            let tap = tap.build_sync()?;
            tap.set_nonblocking(true)?;
            let mac = tap.mac_address()?;
            Ok((tap, mac))
        })?
        .map_err(Error::io(format!("make the TAP {device}")))?;
    tool::switch_off(namespace.name(), device, &["gro", "gso", "tso"])?;
    Ok(opened)
}
