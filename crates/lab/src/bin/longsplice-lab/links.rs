//! Shows the syntax of link descriptions.

use std::process::ExitCode;

use anyhow::{Context, Result};
use longsplice_lab::LinkSpec;
use longsplice_lab::link::{PRESETS, SYNTAX};

/// Shows the syntax and the presets, or the meaning of `links`.
pub(crate) fn show(links: &[String]) -> Result<ExitCode> {
    if links.is_empty() {
        println!("{SYNTAX}\nPresets:");
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
