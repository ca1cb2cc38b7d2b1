//! Searches for ports on the loopback, with flows that closures make up.

use std::{cell::Cell, net::Ipv4Addr};

use tokio::net::TcpListener;

use super::*;

fn ports(range: RangeInclusive<u16>) -> SourcePorts {
    SourcePorts {
        range,
        random: RandomState::new(),
        turn: AtomicU64::new(0),
        exhaustion: Exhaustion::default(),
    }
}

/// Longest time for a connection to come up.
const PATIENT: Duration = Duration::from_secs(20);

/// Connects beside flows that keep their ports.
async fn connect(
    ports: &SourcePorts,
    in_use: impl Fn(Leg) -> bool,
    routes: &Routes,
    target: SocketAddr,
) -> io::Result<TcpStream> {
    connect_or_vacate(ports, in_use, |_| Vacancy::No, routes, target, PATIENT).await
}

async fn connect_or_vacate(
    ports: &SourcePorts,
    in_use: impl Fn(Leg) -> bool,
    vacate: impl Fn(Leg) -> Vacancy,
    routes: &Routes,
    target: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    let look = || async {};
    let flows = Occupants { in_use, vacate, look };
    let connected = ports.connect(&flows, routes, None, target, Request::default(), timeout);
    Ok(connected.await?.0)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn a_remembered_address_that_is_gone_is_asked_for_again() {
    let (_listener, target) = listener().await;
    let routes = Routes::default();
    let gone = IpAddr::from([192, 0, 2, 1]);
    let way = Way {
        source: gone,
        max_segment: None,
    };
    routes.remember(target, way);
    assert_eq!(routes.way(target).unwrap().source, gone, "it is remembered");
    let connected = connect(&ports(20_000..=20_999), |_| false, &routes, target)
        .await
        .unwrap();
    assert_eq!(connected.local_addr().unwrap().ip(), Ipv4Addr::LOCALHOST);
    assert_ne!(routes.way(target).unwrap().source, gone, "and no longer");
}

#[tokio::test]
async fn a_refusal_by_a_flow_is_not_the_targets() {
    let (listener, target) = listener().await;
    drop(listener);
    let (routes, taken, free) = (Routes::default(), ports(22_000..=22_009), ports(22_000..=22_009));
    let (asked, tried) = (Cell::new(0), Cell::new(0));
    // A flow takes each port just as it is tried.
    let in_use = |_| {
        asked.set(asked.get() + 1);
        asked.get() % 2 == 0
    };
    let error = connect(&taken, in_use, &routes, target).await;
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::AddrNotAvailable);
    assert_eq!(asked.get(), 2 * 10, "each port was tried");
    // The target's own refusal is believed after a few attempts.
    let never = |leg: Leg| {
        tried.set(tried.get() | 1 << (leg.local.port() - 22_000));
        false
    };
    let error = connect(&free, never, &routes, target).await;
    assert_eq!(error.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(u16::count_ones(tried.get()), 1 + DOUBTED);
}

#[tokio::test]
async fn a_port_that_carries_a_flow_is_left_alone() {
    let (_listener, target) = listener().await;
    let (routes, ports) = (Routes::default(), ports(21_000..=21_009));
    let in_use = |leg: Leg| leg.local.port() != 21_007;
    let connected = connect(&ports, in_use, &routes, target).await.unwrap();
    assert_eq!(connected.local_addr().unwrap().port(), 21_007);
    // A port of another socket is left alone, too.
    let error = connect(&ports, in_use, &routes, target).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("21000-21009"), "{error}");
}

/// A listener's port may lie in the range: no connection comes from it meanwhile, and those that do hold no listener up.
#[tokio::test]
async fn a_listeners_port_is_passed_over_and_a_source_port_can_be_listened_on() {
    let (_target, target) = listener().await;
    let (other, at) = listener().await;
    let routes = Routes::default();
    let no_flow = |_| false;
    let range = at.port()..=at.port();
    let passing_over = ports(range.clone());
    let error = connect(&passing_over, no_flow, &routes, target)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("are in use: widen"), "{error}");
    drop(other);
    let connected = connect(&ports(range), no_flow, &routes, target).await.unwrap();
    assert_eq!(connected.local_addr().unwrap(), at);
    let again = TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port()))
        .await
        .unwrap();
    let (client, accepted) = tokio::join!(TcpStream::connect(at), again.accept());
    client.unwrap();
    accepted.unwrap();
}

/// A search for a port leaves other tasks their turns, and one that found none spares the next ones the search.
#[tokio::test]
async fn ports_that_are_used_up_hold_nothing_else_up() {
    let (_listener, target) = listener().await;
    let (routes, ports) = (Routes::default(), ports(20_000..=29_999));
    let (asked, turns) = (Cell::new(0), Cell::new(0));
    let in_use = |_| {
        asked.set(asked.get() + 1);
        true
    };
    let connect = || connect(&ports, in_use, &routes, target);
    let others = async {
        loop {
            turns.set(turns.get() + 1);
            tokio::task::yield_now().await;
        }
    };
    let both = async {
        let (first, second) = tokio::join!(connect(), connect());
        [first.map(drop), second.map(drop)]
    };
    let ended = tokio::select! {
        ended = both => ended,
        () = others => unreachable!("it has no end"),
    };
    for error in ended.map(Result::unwrap_err) {
        assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    }
    assert!(turns.get() > 100, "{} turns", turns.get());
    // The second one stopped where a search is long.
    assert!((10_000..10_100).contains(&asked.get()), "{} ports", asked.get());
    assert!(connect().await.is_err());
    assert!(asked.get() < 10_100, "no port is tried again");
}

/// Closed flows are not asked while a free port is found by a few attempts.
#[tokio::test]
async fn closed_flows_give_their_ports_once_ports_are_scarce() {
    let (_listener, target) = listener().await;
    let (routes, ports) = (Routes::default(), ports(23_000..=23_099));
    let (asked, is_gone) = (Cell::new(0), Cell::new(false));
    let has_port = |port: u16| move |leg: Leg| leg.local.port() == port;
    let in_use = |leg: Leg| !(is_gone.get() && has_port(23_055)(leg));
    // One alone has ended long ago.
    let vacate = |leg: Leg| {
        asked.set(asked.get() + 1);
        is_gone.set(is_gone.get() || has_port(23_055)(leg));
        match has_port(23_055)(leg) {
            true => Vacancy::Now(Seq::new(u32::MAX - 5)),
            false => Vacancy::No,
        }
    };
    let connected = connect_or_vacate(&ports, in_use, vacate, &routes, target, PATIENT)
        .await
        .unwrap();
    assert_eq!(connected.local_addr().unwrap().port(), 23_055);
    assert!((1..=100).contains(&asked.get()), "{} were asked", asked.get());
    // A free port is found among a few.
    asked.set(0);
    let some = |leg: Leg| leg.local.port().is_multiple_of(2);
    connect_or_vacate(&ports, some, vacate, &routes, target, PATIENT)
        .await
        .unwrap();
    assert_eq!(asked.get(), 0);
}

/// A flow that was closed a moment ago is waited for, as long as there is time.
#[tokio::test(start_paused = true)]
async fn the_port_of_a_flow_that_was_just_closed_is_waited_for() {
    let (_listener, target) = listener().await;
    let routes = Routes::default();
    let ports = [24_000..=24_009, 24_010..=24_019].map(ports);
    let closed = Instant::now();
    let freed_after = |rest: u64| {
        move |_: Leg| match Duration::from_secs(rest).checked_sub(closed.elapsed()) {
            Some(rest) if !rest.is_zero() => Vacancy::In(rest),
            _ => Vacancy::Now(Seq::new(7)),
        }
    };
    // A port is in use until its flow was asked.
    let attempt = async |ports: &SourcePorts, rest, timeout| {
        let vacated = Cell::new(false);
        let vacate = |leg| {
            let answer = freed_after(rest)(leg);
            vacated.set(matches!(answer, Vacancy::Now(_)));
            answer
        };
        let timeout = Duration::from_secs(timeout);
        connect_or_vacate(ports, |_| !vacated.get(), vacate, &routes, target, timeout).await
    };
    let too_late = attempt(&ports[0], 3, 3).await.unwrap_err();
    assert_eq!(too_late.kind(), io::ErrorKind::AddrNotAvailable);
    assert_eq!(closed.elapsed(), Duration::ZERO, "it is refused at once");
    // Two wait at once.
    let (first, second) = tokio::join!(attempt(&ports[1], 2, 5), attempt(&ports[1], 2, 5));
    first.unwrap();
    second.unwrap();
    assert!(closed.elapsed() >= Duration::from_secs(2));
}
