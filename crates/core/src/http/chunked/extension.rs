//! Reads extensions of chunks, byte by byte: `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )` (RFC
//! 9112 section 7.1.1).

use crate::http::text::is_token_byte;

/// Part of an extension behind which the next byte stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extension {
    /// Blanks that only a semicolon may follow.
    Blank,
    Semicolon,
    Name,
    NameBlank,
    Equals,
    Token,
    Quoted,
    Escape,
    Unquoted,
    /// Carriage return.
    Ended,
}

impl Extension {
    /// Takes the first byte behind the size; `None` if no extension can begin with it.
    pub(super) fn begin(b: u8) -> Option<Extension> {
        match b {
            b';' => Some(Extension::Semicolon),
            b' ' | b'\t' => Some(Extension::Blank),
            _ => None,
        }
    }

    /// Takes the next byte; `None` if it cannot stand here.
    pub(super) fn step(self, b: u8) -> Option<Extension> {
        use Extension::*;
        let is_blank = b == b' ' || b == b'\t';
        let is_text = !b.is_ascii_control() || b == b'\t';
        Some(match (self, b) {
            (Quoted, b'"') => Unquoted,
            (Quoted, b'\\') => Escape,
            (Quoted | Escape, _) if is_text => Quoted,
            (Quoted | Escape, _) => return None,
            (Blank | Semicolon | NameBlank | Equals, _) if is_blank => self,
            (Semicolon | Name, _) if is_token_byte(b) => Name,
            (Equals | Token, _) if is_token_byte(b) => Token,
            (Equals, b'"') => Quoted,
            (Name | NameBlank, b'=') => Equals,
            (Name, _) if is_blank => NameBlank,
            (Token | Unquoted, _) if is_blank => Blank,
            (Blank | Name | NameBlank | Token | Unquoted, b';') => Semicolon,
            (Name | Token | Unquoted, b'\r') => Ended,
            _ => return None,
        })
    }
}
