//! Shows the syntax of link descriptions.

use std::process::ExitCode;

use anyhow::{Context, Result};
use longsplice_lab::LinkSpec;
use longsplice_lab::link::PRESETS;

const SYNTAX: &str = "\
A link is one direction for both ways, or two with a slash between them: to the server / to the client. A direction is a
list with commas: a preset first, if any, then options, each once.

  20ms, delay=20ms     the delay, one way (ns, us, ms, s)
  rtt=40ms             the same: half of it
  jitter=2ms           around the delay; `normal` makes it the deviation of a normal distribution
  jitter-reorders      jitter may change the order of packets
  100Mbit, rate=…      the rate (bit, kbit, Mbit, Gbit per second); without one, what the emulator can do
  queue=256KiB         the queue, in bytes (B, KiB, MiB), packets (50p) or time at the rate (40ms)
  red, red=10%:30%:10% random early detection in place of drop-tail: from and up to these shares of the queue, on average,
                       packets are dropped with a probability that grows to the third one
  loss=0.5%            independent losses
  burst=1%:25%         losses in bursts, as netem's gemodel p r 1-h 1-k; the last two are 100%:0% if they are left out
  reorder=1%           packets held back; reorder-delay=5ms: for how long; gap=4: only every fourth may be
  dup=0.1%             packets delivered twice
  corrupt=0.1%         packets with one bit changed
  seed=7               the seed of this direction; without one, that of the way back follows from the other one
  mtu=1500             the MTU of both devices

Presets:";

/// Shows the syntax and the presets, or the meaning of `links`.
pub(crate) fn show(links: &[String]) -> Result<ExitCode> {
    if links.is_empty() {
        println!("{SYNTAX}");
        for preset in PRESETS {
            println!("  {:8} {}\n           {}", preset.name, preset.about, preset.text);
        }
    }
    for text in links {
        let link: LinkSpec = text.parse().with_context(|| format!("{text:?} is no link"))?;
        println!("{link}");
        println!("  to the server: {}", link.to_server);
        println!("  to the client: {}", link.to_client);
    }
    Ok(ExitCode::SUCCESS)
}
