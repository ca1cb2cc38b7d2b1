//! Reads conditions on header fields and cookies: a table, or a list of tables.

use std::fmt;

use longsplice_core::route::{Condition, Pattern, Text, Token, Want};
use serde::{
    Deserialize, Deserializer,
    de::{
        self,
        value::{MapAccessDeserializer, SeqAccessDeserializer},
    },
};
use toml::Spanned;

use crate::config::{
    one_or_many::{OneOrMany, flatten},
    settler::Settler,
};

/// One table, or several, all of which must be true.
#[derive(Debug)]
pub(super) struct Raw(OneOrMany<Test>);

/// Test of a field.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Test {
    name: Option<Spanned<Token>>,
    value: Option<Spanned<OneOrMany<String>>>,
    prefix: Option<Spanned<OneOrMany<String>>>,
    regex: Option<Spanned<OneOrMany<Pattern>>>,
    present: Option<Spanned<bool>>,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table such as { name = \"x-tenant\", value = \"a\" }, or a list of them")
            }
            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Raw, A::Error> {
                Test::deserialize(MapAccessDeserializer::new(map)).map(|test| Raw(OneOrMany::One(test)))
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, seq: A) -> Result<Raw, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(|tests| Raw(OneOrMany::Many(tests)))
            }
        }
        d.deserialize_any(Either)
    }
}

impl Settler<'_> {
    pub(super) fn headers(&mut self, given: Option<Spanned<Raw>>) -> Vec<Spanned<Condition>> {
        self.fields(given, |s, place, name, want| match name {
            Some(name) => Some(Condition::Header(name, want)),
            None => {
                let help = "add it, such as { name = \"x-tenant\", value = \"a\" }";
                s.complain(place, "the header has no name", help);
                None
            }
        })
    }

    pub(super) fn cookies(&mut self, given: Option<Spanned<Raw>>) -> Vec<Spanned<Condition>> {
        self.fields(given, |_, _, name, want| Some(Condition::Cookie(name, want)))
    }

    fn fields(
        &mut self,
        given: Option<Spanned<Raw>>,
        make: impl Fn(&mut Self, std::ops::Range<usize>, Option<Token>, Want) -> Option<Condition>,
    ) -> Vec<Spanned<Condition>> {
        let Some(given) = given else { return Vec::new() };
        let place = given.span();
        let tests = flatten(Spanned::new(place.clone(), given.into_inner().0));
        if tests.is_empty() {
            self.complain(place, "the list is empty", "leave the key out, or add a table");
        }
        let mut all = Vec::new();
        for test in tests {
            let place = test.span();
            let test = test.into_inner();
            let want = self.want(test.value, test.prefix, test.regex, test.present);
            let name = test.name.map(Spanned::into_inner);
            let made = make(self, place.clone(), name, want);
            all.extend(made.map(|condition| Spanned::new(place, condition)));
        }
        all
    }

    fn want(
        &mut self,
        value: Option<Spanned<OneOrMany<String>>>,
        prefix: Option<Spanned<OneOrMany<String>>>,
        regex: Option<Spanned<OneOrMany<Pattern>>>,
        present: Option<Spanned<bool>>,
    ) -> Want {
        let value = value.map(|list| ("value", list.span(), values(list, Text::Exact)));
        let prefix = prefix.map(|list| ("prefix", list.span(), values(list, Text::Prefix)));
        let regex = regex.map(|list| ("regex", list.span(), values(list, Text::Regex)));
        let present = present.map(|given| {
            let want = if *given.get_ref() {
                Want::Present
            } else {
                Want::Absent
            };
            ("present", given.span(), want)
        });
        let mut given = [value, prefix, regex, present].into_iter().flatten();
        let Some((first, place, want)) = given.next() else {
            return Want::Present;
        };
        if want == Want::Value(Vec::new()) {
            let help = "any value of a list is enough, and there is none: add one";
            self.complain(place, "the list is empty", help);
        }
        for (second, place, _) in given {
            let message = format!("`{first}` and `{second}` say two things of one field");
            let help = "leave one of them out, or write two tables, if both must be true";
            self.complain(place, message, help);
        }
        want
    }
}

fn values<T>(list: Spanned<OneOrMany<T>>, make: fn(T) -> Text) -> Want {
    let list = flatten(list).into_iter().map(Spanned::into_inner);
    Want::Value(list.map(make).collect())
}
