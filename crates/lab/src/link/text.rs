//! Links as text: see [`LinkSpec`] for the syntax.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::units::{
    read_percent, read_queue, read_rate, read_red, read_time, show_percent, show_queue, show_rate, show_red,
    show_time,
};
use super::{Burst, Direction, Distribution, LinkError, LinkSpec, Red, preset, seed_of_the_way_back};

impl FromStr for LinkSpec {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let mut mtu = None;
        let mut directions = Vec::new();
        for part in text.split('/') {
            directions.push(Reader::read(part, Some(&mut mtu))?);
        }
        let mut link = match directions.as_slice() {
            [(both, _)] => LinkSpec::symmetric(both.clone()),
            [(to_server, _), (to_client, seeded)] => LinkSpec {
                to_server: to_server.clone(),
                to_client: Direction {
                    seed: if *seeded {
                        to_client.seed
                    } else {
                        seed_of_the_way_back(to_server.seed)
                    },
                    ..to_client.clone()
                },
                ..LinkSpec::default()
            },
            other => return Err(LinkError::Directions(other.len())),
        };
        link.mtu = mtu.unwrap_or(link.mtu);
        link.check()?;
        Ok(link)
    }
}

impl FromStr for Direction {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let (direction, _) = Reader::read(text, None)?;
        direction.check()?;
        Ok(direction)
    }
}

/// State of a direction that is being read.
struct Reader<'a> {
    direction: Direction,
    /// Options given so far; a second one of the same name is an error.
    given: Vec<&'static str>,
    /// Destination of the MTU, which belongs to the link and not to a direction.
    mtu: Option<&'a mut Option<u16>>,
}

impl<'a> Reader<'a> {
    /// Reads a direction. Returns it, and whether its seed was given.
    fn read(text: &str, mtu: Option<&'a mut Option<u16>>) -> Result<(Direction, bool), LinkError> {
        let mut reader = Reader {
            direction: Direction::default(),
            given: Vec::new(),
            mtu,
        };
        let mut items = text.trim().split(',').map(str::trim).peekable();
        if let Some(preset) = items.peek().and_then(|name| preset::text(name)) {
            items.next();
            preset.split(',').try_for_each(|item| reader.take(item))?;
            // Options after a preset may repeat those of the preset.
            reader.given.clear();
        }
        items.try_for_each(|item| reader.take(item))?;
        let seeded = reader.given.contains(&"seed");
        Ok((reader.direction, seeded))
    }

    /// Reads one option.
    fn take(&mut self, item: &str) -> Result<(), LinkError> {
        let Some((name, text)) = item.split_once('=') else {
            return self.bare(item);
        };
        let option = OPTIONS.into_iter().find(|option| *option == name);
        let option = option.ok_or_else(|| LinkError::Unknown(item.to_owned()))?;
        match option {
            "mtu" => self.mtu(item, text),
            _ => {
                self.once(if option == "rtt" { "delay" } else { option })?;
                set(&mut self.direction, option, text)
            }
        }
    }

    /// Reads an option without a name, or without a value.
    fn bare(&mut self, item: &str) -> Result<(), LinkError> {
        if read_time(item).is_some() {
            self.once("delay")?;
            return set(&mut self.direction, "delay", item);
        }
        if read_rate(item).is_some() {
            self.once("rate")?;
            return set(&mut self.direction, "rate", item);
        }
        match item {
            "normal" | "uniform" => self.once("the distribution of the jitter")?,
            "jitter-reorders" => self.once("jitter-reorders")?,
            "red" => self.once("red")?,
            "drop-tail" => self.once("red")?,
            _ => return Err(LinkError::Unknown(item.to_owned())),
        }
        match item {
            "normal" => self.direction.distribution = Distribution::Normal,
            "uniform" => self.direction.distribution = Distribution::Uniform,
            "red" => self.direction.red = Some(Red::default()),
            "drop-tail" => self.direction.red = None,
            _ => self.direction.jitter_reorders = true,
        }
        Ok(())
    }

    fn mtu(&mut self, item: &str, text: &str) -> Result<(), LinkError> {
        match self.mtu.as_deref_mut() {
            Some(mtu @ None) => *mtu = Some(number("mtu", text)?),
            Some(Some(_)) => return Err(LinkError::Twice("mtu")),
            None => return Err(LinkError::Unknown(item.to_owned())),
        }
        Ok(())
    }

    fn once(&mut self, option: &'static str) -> Result<(), LinkError> {
        if self.given.contains(&option) {
            return Err(LinkError::Twice(option));
        }
        self.given.push(option);
        Ok(())
    }
}

/// Names of the options that have a value.
const OPTIONS: [&str; 15] = [
    "delay",
    "rtt",
    "jitter",
    "loss",
    "burst",
    "reorder",
    "reorder-delay",
    "gap",
    "dup",
    "corrupt",
    "rate",
    "queue",
    "red",
    "seed",
    "mtu",
];

/// Sets the property of `option`, one of [`OPTIONS`] without the MTU.
fn set(direction: &mut Direction, option: &'static str, text: &str) -> Result<(), LinkError> {
    let percent = |text| value(option, text, "a percentage, as 0.5%", read_percent(text));
    let time = || value(option, text, "a time, as 20ms", read_time(text));
    match option {
        "delay" => direction.delay = time()?,
        "rtt" => direction.delay = time()? / 2,
        "jitter" => direction.jitter = time()?,
        "loss" => direction.loss = percent(text)?,
        "burst" => {
            let read = burst(text);
            let wants = "up to four percentages, as 1%:25% or 1%:25%:100%:0%";
            direction.burst = Some(value(option, text, wants, read)?);
        }
        "reorder" => direction.reorder = percent(text)?,
        "reorder-delay" => direction.reorder_delay = time()?,
        "gap" => direction.reorder_gap = number(option, text)?,
        "dup" => direction.duplicate = percent(text)?,
        "corrupt" => direction.corrupt = percent(text)?,
        "rate" => {
            let rate = value(option, text, "a rate, as 100Mbit", read_rate(text))?;
            direction.rate = Some(rate);
        }
        "queue" => {
            let wants = "bytes, packets or a time, as 256KiB, 50p or 40ms";
            direction.queue = value(option, text, wants, read_queue(text))?;
        }
        "red" => {
            let wants = "two shares of the queue and a probability, as 10%:30%:10%";
            direction.red = Some(value(option, text, wants, read_red(text))?);
        }
        "seed" => direction.seed = number(option, text)?,
        _ => return Err(LinkError::Unknown(option.to_owned())),
    }
    Ok(())
}

/// Reads the parameters of a [`Burst`]: two, three or four percentages.
fn burst(text: &str) -> Option<Burst> {
    let mut parts = text.split(':').map(read_percent);
    let mut burst = Burst::new(parts.next()??, parts.next()??);
    for field in [&mut burst.loss_bad, &mut burst.loss_good] {
        if let Some(part) = parts.next() {
            *field = part?;
        }
    }
    parts.next().is_none().then_some(burst)
}

fn number<T: FromStr>(option: &'static str, text: &str) -> Result<T, LinkError> {
    value(option, text, "a whole number in its range", text.parse().ok())
}

/// Returns the value that was `read`, or the error when there is none.
fn value<T>(option: &'static str, text: &str, wants: &'static str, read: Option<T>) -> Result<T, LinkError> {
    read.ok_or_else(|| LinkError::Value {
        option,
        text: text.to_owned(),
        wants,
    })
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_server)?;
        if self.mtu != 1500 {
            write!(f, ",mtu={}", self.mtu)?;
        }
        let back = Direction {
            seed: seed_of_the_way_back(self.to_server.seed),
            ..self.to_server.clone()
        };
        if self.to_client == back {
            return Ok(());
        }
        write!(f, " / {}", self.to_client)
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only differences from the default are shown.
        let plain = Direction::default();
        write!(f, "{}", show_time(self.delay))?;
        if let Some(rate) = self.rate {
            write!(f, ",{}", show_rate(rate))?;
        }
        if self.queue != plain.queue {
            write!(f, ",queue={}", show_queue(self.queue))?;
        }
        if let Some(red) = self.red {
            write!(f, ",red={}", show_red(red))?;
        }
        if self.jitter != plain.jitter {
            write!(f, ",jitter={}", show_time(self.jitter))?;
        }
        if self.distribution == Distribution::Normal {
            write!(f, ",normal")?;
        }
        if self.jitter_reorders {
            write!(f, ",jitter-reorders")?;
        }
        if let Some(burst) = self.burst {
            let parts = [burst.enter, burst.leave, burst.loss_bad, burst.loss_good];
            write!(f, ",burst={}", parts.map(show_percent).join(":"))?;
        }
        for (option, is, plain) in [
            ("loss", self.loss, plain.loss),
            ("reorder", self.reorder, plain.reorder),
            ("dup", self.duplicate, plain.duplicate),
            ("corrupt", self.corrupt, plain.corrupt),
        ] {
            if is != plain {
                write!(f, ",{option}={}", show_percent(is))?;
            }
        }
        if self.reorder_delay != plain.reorder_delay {
            write!(f, ",reorder-delay={}", show_time(self.reorder_delay))?;
        }
        if self.reorder_gap != plain.reorder_gap {
            write!(f, ",gap={}", self.reorder_gap)?;
        }
        write!(f, ",seed={}", self.seed)
    }
}

impl Serialize for LinkSpec {
    /// Writes the link as text.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for LinkSpec {
    /// Reads the link from text.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
