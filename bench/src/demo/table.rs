//! Table at the end: Longsplice beside the kernel's router and its peers, measured on the spot.

use anyhow::{Context, Result, ensure};
use longsplice_lab::Line;

use super::console::{checked, say, step};
use crate::contender::{Contender, Rig, Rounds};
use crate::supervise::Room;

const CONTENDERS: [Contender; 5] = [
    Contender::Router,
    Contender::Spliced,
    Contender::Relay,
    Contender::HaProxy,
    Contender::Nginx,
];
const ROUNDS: u32 = 2;
const SECONDS: u32 = 3;

/// Measures and prints the table.
pub(super) fn run(room: &Room, net: &Line) -> Result<()> {
    step(5, "One bulk stream, measured now");
    say(&format!(
        "iperf3, one stream, {SECONDS} s, {ROUNDS} rounds in turn, medians. The CPU time is the busy time of the\n\
         whole machine during the transfer, from /proc/stat: both ends and iperf3 itself included, nothing\n\
         subtracted.\n"
    ));
    let rig = Rig { room, nodes: net };
    let series = rig.in_turn(&CONTENDERS, ROUNDS, SECONDS, |contender, bulk| {
        println!("   {:<22} {:6.2} Gbit/s", contender.title(), bulk.gbps);
    })?;
    print(&series)?;
    let speed = |contender| -> Result<f64> {
        let found = series.iter().find(|one| one.contender == contender);
        Ok(found.and_then(Rounds::gbps).context("it was measured")?.median)
    };
    ensure!(
        series
            .iter()
            .all(|one| one.gbps().is_some_and(|gbps| gbps.min > 0.0)),
        "a contender moved nothing"
    );
    ensure!(
        series.iter().all(|one| one.splices() != Some(0.0)),
        "iperf3's two connections were not spliced"
    );
    let ratio = speed(Contender::Spliced)? / speed(Contender::Relay)?;
    checked(&format!(
        "each moved bytes; spliced / relayed: {ratio:.2} times the throughput"
    ));
    Ok(())
}

fn print(series: &[Rounds]) -> Result<()> {
    let router = series.first().context("the router comes first")?;
    let base = router
        .gbps()
        .zip(router.cpu())
        .context("the router was measured")?;
    println!();
    println!("   | one stream through    | Gbit/s | / router | CPU s per GB | / router |");
    println!("   |-----------------------|-------:|---------:|-------------:|---------:|");
    for one in series {
        let (gbps, cpu) = one.gbps().zip(one.cpu()).context("it was measured")?;
        println!(
            "   | {:<21} | {:6.2} | {:8.2} | {:12.3} | {:8.2} |",
            one.contender.title(),
            gbps.median,
            gbps.median / base.0.median,
            cpu.median,
            cpu.median / base.1.median
        );
    }
    println!();
    Ok(())
}
