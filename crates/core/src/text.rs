//! Gives types their text, so that a file, a reply and a message read alike.

/// Implements `Deserialize` by `FromStr`.
#[macro_export]
macro_rules! from_text {
    ($($t:ty),+) => {$(
        impl<'de> ::serde::Deserialize<'de> for $t {
            fn deserialize<D: ::serde::Deserializer<'de>>(d: D) -> ::std::result::Result<Self, D::Error> {
                <::std::string::String as ::serde::Deserialize>::deserialize(d)?
                    .parse()
                    .map_err(::serde::de::Error::custom)
            }
        }
    )+};
}

/// Implements `Serialize` by `Display`, and `Deserialize` by `FromStr`.
#[macro_export]
macro_rules! as_text {
    ($($t:ty),+) => {$(
        impl ::serde::Serialize for $t {
            fn serialize<S: ::serde::Serializer>(&self, s: S) -> ::std::result::Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        $crate::from_text!($t);
    )+};
}

/// Defines `as_str` of enums that derive `strum::IntoStaticStr`, each with its visibility.
#[macro_export]
macro_rules! named {
    ($($vis:vis $t:ident),+) => {$(
        impl $t {
            /// Returns the name in configurations, replies, messages and metrics.
            $vis fn as_str(self) -> &'static str {
                self.into()
            }
        }
    )+};
}
