//! Keeps taken-over connections out of connection tracking (nf_conntrack): it would take both legs for one connection, because they
//! have the same addresses, and find segments of the one invalid by the numbers of the other.
//!
//! The means is a table of nftables with two chains, before connection tracking in both ways of a socket's segments. They say
//! `notrack` of segments with [`MARK`]: rules set it for what they deliver to this host, and the sockets for what they send. A
//! connection that passes through has no mark, and is tracked as without the daemon. The table belongs to a netlink socket
//! (`NFT_TABLE_F_OWNER`): no other program changes it, `nft flush ruleset` leaves it, and the kernel removes it with this
//! process, however that ends.

use std::{
    io,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use crate::{
    Splicer,
    kernel::{
        netfilter::{Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, Netfilter, attribute, nested},
        socket::MARK,
    },
};

/// Time after a refusal until the table is tried again: a killed predecessor may still be on its way out.
const RETRY: Duration = Duration::from_secs(1);

// linux/netfilter/nfnetlink.h: messages around those of a batch, and subsystem nf_tables.
const BATCH_BEGIN: (u8, u8) = (0, 0x10);
const BATCH_END: (u8, u8) = (0, 0x11);
const NFTABLES: u8 = 10;

// linux/netfilter/nf_tables.h
const NFT_MSG_NEWTABLE: u8 = 0;
const NFT_MSG_NEWCHAIN: u8 = 3;
const NFT_MSG_NEWRULE: u8 = 6;
const NFT_MSG_GETGEN: u8 = 16;
const NFT_TABLE_F_OWNER: u32 = 2;
const NFT_REG_1: u32 = 1;
const NFT_META_MARK: u32 = 3;
const NFT_META_IIFNAME: u32 = 6;
const NFT_CMP_EQ: u32 = 0;

// linux/netfilter.h, netfilter_ipv4.h
const NFPROTO_INET: u8 = 1;
const NF_INET_PRE_ROUTING: u32 = 0;
const NF_INET_LOCAL_OUT: u32 = 3;
const NF_IP_PRI_RAW: i32 = -300;

/// Length of an interface's name in a register of nftables.
const IFNAMSIZ: usize = 16;

/// Exempts the taken-over connections of an instance from connection tracking, as soon as connections are tracked in this network
/// namespace.
#[derive(Debug)]
pub struct Notrack {
    splicer: Splicer,
    table: String,
    /// Names of the interfaces at which segments come in.
    interfaces: Vec<String>,
    /// Socket to which the table belongs. It is opened before the connections' sockets, so that its descriptor is a lower one: a
    /// dying process closes the highest one first, and resets of its connections must not be tracked either.
    owner: io::Result<Netfilter>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    /// Nothing was tracked so far.
    Unneeded,
    /// The table is set.
    Set,
    /// The kernel refused, at this time.
    Refused(Instant),
}

impl Notrack {
    /// Prepares the table of an instance, for segments that come in on these interfaces.
    pub fn new(splicer: &Splicer, instance: &str, interfaces: Vec<String>) -> Notrack {
        Notrack {
            splicer: splicer.clone(),
            // A predecessor that still releases its connections has a table of its own.
            table: format!("longsplice-{instance}-{}", std::process::id()),
            interfaces,
            owner: Netfilter::open(),
            state: Mutex::new(State::Unneeded),
        }
    }

    /// Sets the table if connections are tracked here and it is not set. Call it after each SYN that was sent on, whose tracking
    /// shows that there is any, and from time to time. A refusal is logged.
    pub fn look(&self) {
        let mut state = self.state.lock();
        let is_new = match *state {
            State::Set => return,
            State::Refused(at) if at.elapsed() < RETRY => return,
            State::Refused(_) => false,
            State::Unneeded => true,
        };
        let kernel = self.splicer.context.kernel.as_ref();
        if !kernel.is_some_and(|kernel| kernel.conntrack.look()) {
            return;
        }
        *state = match self.set() {
            Ok(()) => {
                tracing::info!(
                    table = self.table,
                    "taken-over connections are exempted from connection tracking"
                );
                State::Set
            }
            Err(error) => {
                if is_new {
                    tracing::warn!(
                        %error,
                        table = self.table,
                        "taken-over connections are tracked: a firewall that drops what is invalid breaks them \
                         (docs/accelerator.md#connection-tracking)"
                    );
                }
                State::Refused(Instant::now())
            }
        };
    }

    fn set(&self) -> Result<(), String> {
        let owner = self.owner.as_ref().map_err(|e| e.to_string())?;
        let batch = batch(&self.table, &self.interfaces);
        owner.ask(&batch).map_err(|e| e.to_string())
    }
}

/// Checks whether the kernel has nftables, and lets this process use it.
///
/// # Errors
/// Returns those of the kernel.
pub fn probe() -> io::Result<()> {
    let message = Message {
        kind: (NFTABLES, NFT_MSG_GETGEN),
        flags: NLM_F_ACK,
        family: 0,
        resource: 0,
        attributes: &[],
    };
    Netfilter::open()?.ask(&message.bytes())
}

/// Encodes the table with its chains and rules, to be set as a whole or not at all.
fn batch(table: &str, interfaces: &[String]) -> Vec<u8> {
    let around = |kind| Message {
        kind,
        flags: 0,
        family: 0,
        resource: NFTABLES.into(),
        attributes: &[],
    };
    let new = |what: u8, attributes: &[u8]| {
        let message = Message {
            kind: (NFTABLES, what),
            flags: NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL,
            family: NFPROTO_INET,
            resource: 0,
            attributes,
        };
        message.bytes()
    };
    let mut bytes = around(BATCH_BEGIN).bytes();
    let flags = number(2, NFT_TABLE_F_OWNER);
    bytes.extend(new(NFT_MSG_NEWTABLE, &[text(1, table), flags].concat()));
    for (chain, hook) in [("in", NF_INET_PRE_ROUTING), ("out", NF_INET_LOCAL_OUT)] {
        let hook = [number(1, hook), attribute(2, &NF_IP_PRI_RAW.to_be_bytes())].concat();
        let attributes = [
            text(1, table),
            text(3, chain),
            nested(4, &hook),
            text(7, "filter"),
        ];
        bytes.extend(new(NFT_MSG_NEWCHAIN, &attributes.concat()));
    }
    let mut add = |chain: &str, matches: Vec<u8>| {
        let all = [matches, expression("notrack", &[])].concat();
        let attributes = [text(1, table), text(2, chain), nested(4, &all)];
        bytes.extend(new(NFT_MSG_NEWRULE, &attributes.concat()));
    };
    for interface in interfaces {
        add("in", [is_marked(), comes_in_at(interface)].concat());
    }
    add("out", is_marked());
    bytes.extend(around(BATCH_END).bytes());
    bytes
}

/// Encodes the condition that a packet has [`MARK`].
fn is_marked() -> Vec<u8> {
    let bits = [
        number(1, NFT_REG_1),
        number(2, NFT_REG_1),
        number(3, 4),
        nested(4, &attribute(1, &MARK.mask.to_ne_bytes())),
        nested(5, &attribute(1, &0_u32.to_ne_bytes())),
    ];
    [
        load(NFT_META_MARK),
        expression("bitwise", &bits.concat()),
        equals(&MARK.value.to_ne_bytes()),
    ]
    .concat()
}

/// Encodes the condition that a packet comes in at an interface.
fn comes_in_at(interface: &str) -> Vec<u8> {
    let mut name = interface.as_bytes().to_vec();
    name.resize(IFNAMSIZ, 0);
    [load(NFT_META_IIFNAME), equals(&name)].concat()
}

/// Encodes the load of a packet's property into the register.
fn load(key: u32) -> Vec<u8> {
    expression("meta", &[number(2, key), number(1, NFT_REG_1)].concat())
}

/// Encodes the condition that the register holds a value.
fn equals(value: &[u8]) -> Vec<u8> {
    let value = nested(3, &attribute(1, value));
    let attributes = [number(1, NFT_REG_1), number(2, NFT_CMP_EQ), value];
    expression("cmp", &attributes.concat())
}

/// Encodes an element of a rule's list of expressions.
fn expression(name: &str, attributes: &[u8]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, attributes)].concat())
}

fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}
