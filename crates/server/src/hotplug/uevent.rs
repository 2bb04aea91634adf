//! The kernel's messages about devices that come, go and change: one datagram each, `ACTION@DEVPATH` and then
//! `KEY=value` texts, each ended by a zero byte.
//!
//! Anybody may send to this kind of socket within a network name space, so the sender is looked at: only the kernel
//! (port 0) is believed. The socket must stand in the name space of the machine: in a container nothing is heard, and
//! what is left is the engine's own probing.

use std::{io, os::unix::net};

use rustix::net::{
    AddressFamily, RecvFlags, SocketFlags, SocketType, bind, netlink, netlink::SocketAddrNetlink, recvfrom,
    socket_with,
};
use tokio::{io::Interest, net::UnixDatagram};

/// Longest message: the kernel's own bound is 2 KiB of pairs.
const MESSAGE_MAX: usize = 16 << 10;
/// The group of the kernel's messages; udev's own are in the next.
const KERNEL_GROUP: u32 = 1;

/// What happened to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It is there now.
    Add,
    /// It is gone.
    Remove,
    /// Something about it changed: its size, its medium, whether it answers.
    Change,
}

/// A message about a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uevent {
    pub(crate) action: Action,
    /// Name below `/dev`.
    pub(crate) name: String,
}

/// Takes a message apart. None if it is about something else than a block device, or no such message.
pub(crate) fn parse(message: &[u8]) -> Option<Uevent> {
    let text = std::str::from_utf8(message).ok()?;
    let mut parts = text.split('\0');
    // `add@/devices/…/block/sdb`; what udev sends begins otherwise.
    let (_, path) = parts.next()?.split_once('@')?;
    let (mut action, mut subsystem, mut name) = (None, None, None);
    for part in parts {
        match part.split_once('=') {
            Some(("ACTION", value)) => action = Some(value),
            Some(("SUBSYSTEM", value)) => subsystem = Some(value),
            Some(("DEVNAME", value)) => name = Some(value),
            _ => {}
        }
    }
    if subsystem? != "block" {
        return None;
    }
    let action = match action? {
        "add" | "online" => Action::Add,
        "remove" | "offline" => Action::Remove,
        "change" | "move" => Action::Change,
        _ => return None,
    };
    let name = name.or_else(|| path.rsplit('/').next())?;
    Some(Uevent { action, name: name.to_owned() })
}

/// The socket the messages come on.
#[derive(Debug)]
pub(crate) struct Uevents {
    /// Waited for as tokio waits for any datagram socket; messages are received by [`recvfrom`] only, which knows the
    /// family's addresses.
    socket: UnixDatagram,
}

impl Uevents {
    /// Listens from now on. Wants a tokio runtime.
    ///
    /// # Errors
    /// The system does not let this process listen.
    pub(crate) fn listen() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(netlink::KOBJECT_UEVENT))?;
        bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
        Ok(Self { socket: UnixDatagram::from_std(net::UnixDatagram::from(socket))? })
    }

    /// The next message about a block device. Messages were lost if it is none: then anything may have happened.
    ///
    /// # Errors
    /// The socket is of no use any more.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Uevent>> {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            self.socket.readable().await?;
            let received = self.socket.try_io(Interest::READABLE, || {
                let (_, len, from) = recvfrom(&self.socket, &mut buffer[..], RecvFlags::empty())?;
                Ok((len, from))
            });
            let (len, from) = match received {
                Ok(received) => received,
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                    return Ok(None);
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) =>
                {
                    continue;
                }
                Err(error) => return Err(error),
            };
            let sender = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
            if sender.is_none_or(|sender| sender.pid() != 0) {
                continue;
            }
            if let Some(event) = buffer.get(..len).and_then(parse) {
                return Ok(Some(event));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a kernel sent it when a USB disk was plugged in.
    const ADD: &[u8] = b"add@/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb\0\
        ACTION=add\0DEVPATH=/devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0/block/sdb\0\
        SUBSYSTEM=block\0MAJOR=8\0MINOR=16\0DEVNAME=sdb\0DEVTYPE=disk\0DISKSEQ=14\0SEQNUM=5012\0";
    /// And when its first partition went.
    const REMOVE: &[u8] = b"remove@/devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sdc/sdc1\0\
        ACTION=remove\0DEVPATH=/devices/pci0000:00/0000:00:17.0/ata3/host2/target2:0:0/2:0:0:0/block/sdc/sdc1\0\
        SUBSYSTEM=block\0MAJOR=8\0MINOR=33\0DEVNAME=sdc1\0DEVTYPE=partition\0DISKSEQ=3\0PARTN=1\0SEQNUM=5101\0";
    /// When a virtual disk was made larger.
    const CHANGE: &[u8] = b"change@/devices/pci0000:00/0000:00:05.0/virtio2/block/vdb\0ACTION=change\0\
        DEVPATH=/devices/pci0000:00/0000:00:05.0/virtio2/block/vdb\0SUBSYSTEM=block\0RESIZE=1\0MAJOR=254\0MINOR=16\0\
        DEVNAME=vdb\0DEVTYPE=disk\0DISKSEQ=9\0SEQNUM=1803\0";
    /// Not a block device, although there is one further down.
    const OTHER: &[u8] = b"add@/devices/pci0000:00/0000:00:14.0/usb2/2-1\0ACTION=add\0\
        DEVPATH=/devices/pci0000:00/0000:00:14.0/usb2/2-1\0SUBSYSTEM=usb\0MAJOR=189\0MINOR=129\0\
        DEVNAME=bus/usb/002/002\0DEVTYPE=usb_device\0SEQNUM=5003\0";

    #[test]
    fn disks_and_partitions_that_come_go_and_grow_are_heard() {
        let event = |action, name: &str| Some(Uevent { action, name: name.to_owned() });
        assert_eq!(parse(ADD), event(Action::Add, "sdb"));
        assert_eq!(parse(REMOVE), event(Action::Remove, "sdc1"));
        assert_eq!(parse(CHANGE), event(Action::Change, "vdb"));
    }

    #[test]
    fn everything_else_is_not() {
        assert_eq!(parse(OTHER), None);
        assert_eq!(parse(b"libudev\0\xfe\xed\xca\xfe\0\0\0\x28SUBSYSTEM=block\0ACTION=add\0"), None);
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"add@/x"), None);
        assert_eq!(parse(b"bind@/devices/x\0ACTION=bind\0SUBSYSTEM=block\0DEVNAME=sdb\0"), None);
        for len in 0..ADD.len() {
            let _whatever = parse(&ADD[..len]);
        }
    }

    #[tokio::test]
    async fn the_kernel_lets_any_user_listen() {
        let Ok(mut uevents) = Uevents::listen() else { return };
        let waited = tokio::time::timeout(std::time::Duration::from_millis(20), uevents.next()).await;
        assert!(waited.is_err() || waited.is_ok_and(|next| next.is_ok()));
    }
}
