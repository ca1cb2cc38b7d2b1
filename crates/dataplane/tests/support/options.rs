//! Represents TCP options as values.

/// Represents one option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opt {
    Nop,
    /// Value and echo.
    Timestamps(u32, u32),
    /// Blocks: left and right edge.
    Sack(Vec<(u32, u32)>),
    /// Any other kind, with its body.
    Other(u8, Vec<u8>),
    /// Rest of the options, from an end-of-list or an impossible length on.
    Rest(Vec<u8>),
}

use Opt::{Nop, Other, Rest, Sack, Timestamps};

/// Encodes options, padded with end-of-list to a multiple of four.
pub fn write(options: &[Opt]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for option in options {
        match option {
            Nop => bytes.push(1),
            Timestamps(value, echo) => {
                bytes.extend([8, 10]);
                bytes.extend(value.to_be_bytes());
                bytes.extend(echo.to_be_bytes());
            }
            Sack(blocks) => {
                bytes.extend([5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    bytes.extend(left.to_be_bytes());
                    bytes.extend(right.to_be_bytes());
                }
            }
            Other(kind, body) => {
                bytes.extend([*kind, 2 + body.len() as u8]);
                bytes.extend(body);
            }
            Rest(rest) => bytes.extend(rest),
        }
    }
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    assert!(bytes.len() <= 40, "{options:?}");
    bytes
}

/// Decodes options.
pub fn read(mut bytes: &[u8]) -> Vec<Opt> {
    let word = |b: &[u8]| u32::from_be_bytes(b.try_into().expect("four bytes"));
    let mut options = Vec::new();
    while let Some(&kind) = bytes.first() {
        let size = usize::from(*bytes.get(1).unwrap_or(&0));
        let option = match kind {
            1 => Nop,
            0 => Rest(bytes.to_vec()),
            _ if size < 2 || size > bytes.len() => Rest(bytes.to_vec()),
            8 if size == 10 => Timestamps(word(&bytes[2..6]), word(&bytes[6..10])),
            5 if size >= 10 && size % 8 == 2 => Sack(
                bytes[2..size]
                    .chunks(8)
                    .map(|block| (word(&block[..4]), word(&block[4..])))
                    .collect(),
            ),
            _ => Other(kind, bytes[2..size].to_vec()),
        };
        bytes = match option {
            Nop => &bytes[1..],
            Rest(_) => &[],
            _ => &bytes[size..],
        };
        options.push(option);
    }
    options
}

/// Returns NOP NOP TS, the layout of nearly every sender.
pub fn usual(value: u32, echo: u32) -> Vec<u8> {
    write(&[Nop, Nop, Timestamps(value, echo)])
}

/// Returns NOP NOP TS with a SACK option behind it.
pub fn usual_with_sack(value: u32, echo: u32, blocks: &[(u32, u32)]) -> Vec<u8> {
    write(&[Nop, Nop, Timestamps(value, echo), Nop, Nop, Sack(blocks.to_vec())])
}
