//! Names the two sides of a flow, and holds a value for each.

use std::{
    array,
    ops::{Index, IndexMut},
};

/// Side of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The initiator's leg.
    Client = 0,
    /// The target's leg.
    Server = 1,
}

impl Side {
    /// Both sides, in the order of the arrays that are indexed by side.
    pub const BOTH: [Side; 2] = [Side::Client, Side::Server];

    /// Returns the far side.
    #[must_use]
    pub const fn other(self) -> Side {
        match self {
            Side::Client => Side::Server,
            Side::Server => Side::Client,
        }
    }

    /// Returns the index of the side in [`Side::BOTH`]. Arrays in that order are indexed by the side itself.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Value for each side of a flow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PerSide<T> {
    /// The client side's.
    pub client: T,
    /// The server side's.
    pub server: T,
}

impl<T> PerSide<T> {
    /// Makes it of the client side's value and the server side's.
    pub const fn new(client: T, server: T) -> Self {
        PerSide { client, server }
    }

    /// Computes the value of each side, the client side's first.
    pub fn from_fn(mut value: impl FnMut(Side) -> T) -> Self {
        let client = value(Side::Client);
        PerSide {
            client,
            server: value(Side::Server),
        }
    }

    /// Computes the value of each side, the client side's first, and stops at the first error.
    pub fn try_from_fn<E>(mut value: impl FnMut(Side) -> Result<T, E>) -> Result<Self, E> {
        let client = value(Side::Client)?;
        Ok(PerSide {
            client,
            server: value(Side::Server)?,
        })
    }

    /// Converts the value of each side, the client side's first.
    pub fn map<U>(self, mut f: impl FnMut(T) -> U) -> PerSide<U> {
        let client = f(self.client);
        PerSide {
            client,
            server: f(self.server),
        }
    }

    /// Joins two values for each side into a tuple.
    pub fn zip<U>(self, other: PerSide<U>) -> PerSide<(T, U)> {
        PerSide {
            client: (self.client, other.client),
            server: (self.server, other.server),
        }
    }

    /// Gives each side the other's value.
    #[must_use]
    pub fn swap(self) -> Self {
        PerSide {
            client: self.server,
            server: self.client,
        }
    }

    /// Returns a reference to the value of each side.
    pub const fn as_ref(&self) -> PerSide<&T> {
        PerSide {
            client: &self.client,
            server: &self.server,
        }
    }

    /// Returns a mutable reference to the value of each side.
    pub const fn as_mut(&mut self) -> PerSide<&mut T> {
        PerSide {
            client: &mut self.client,
            server: &mut self.server,
        }
    }

    /// Iterates over references to the values, the client side's first.
    pub fn iter(&self) -> array::IntoIter<&T, 2> {
        self.as_ref().into_iter()
    }

    /// Iterates over mutable references to the values, the client side's first.
    pub fn iter_mut(&mut self) -> array::IntoIter<&mut T, 2> {
        self.as_mut().into_iter()
    }
}

impl<T> PerSide<Option<T>> {
    /// Returns the client side's value and the server side's, if there are both.
    pub fn complete(self) -> Option<(T, T)> {
        self.client.zip(self.server)
    }
}

impl<T: Clone> PerSide<T> {
    /// Gives both sides the same value.
    pub fn both(value: T) -> Self {
        PerSide {
            client: value.clone(),
            server: value,
        }
    }
}

impl<T> Index<Side> for PerSide<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}

impl<T> IndexMut<Side> for PerSide<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }
}

/// Indexes an array in the order of [`Side::BOTH`] by side, such as those that are shared with the kernel half.
impl<T> Index<Side> for [T; 2] {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        &self[side.index()]
    }
}

impl<T> IndexMut<Side> for [T; 2] {
    fn index_mut(&mut self, side: Side) -> &mut T {
        &mut self[side.index()]
    }
}

impl<T> IntoIterator for PerSide<T> {
    type Item = T;
    type IntoIter = array::IntoIter<T, 2>;

    fn into_iter(self) -> Self::IntoIter {
        <[T; 2]>::from(self).into_iter()
    }
}

impl<'a, T> IntoIterator for &'a PerSide<T> {
    type Item = &'a T;
    type IntoIter = array::IntoIter<&'a T, 2>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut PerSide<T> {
    type Item = &'a mut T;
    type IntoIter = array::IntoIter<&'a mut T, 2>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T> From<[T; 2]> for PerSide<T> {
    fn from([client, server]: [T; 2]) -> Self {
        PerSide { client, server }
    }
}

impl<T> From<PerSide<T>> for [T; 2] {
    fn from(PerSide { client, server }: PerSide<T>) -> Self {
        [client, server]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_value() {
        let mut values = PerSide::new('c', 's');
        assert_eq!((values[Side::Client], values[Side::Server]), ('c', 's'));
        assert_eq!(values.swap(), PerSide::new('s', 'c'));
        values[Side::Server] = 't';
        *values.as_mut().client = 'd';
        assert_eq!(values, PerSide::from(['d', 't']));
        assert_eq!(PerSide::both(7), PerSide::new(7, 7));
        assert_eq!(Side::BOTH.map(Side::other), [Side::Server, Side::Client]);
    }

    #[test]
    fn the_order_is_that_of_the_shared_arrays() {
        let sides = PerSide::from_fn(|side| side);
        assert_eq!(<[Side; 2]>::from(sides), Side::BOTH);
        assert_eq!(sides.into_iter().map(Side::index).collect::<Vec<_>>(), [0, 1]);
        let mut array = ['c', 's'];
        array[Side::Server] = 't';
        assert_eq!((array[Side::Client], array), ('c', ['c', 't']));
        assert_eq!(sides.iter().copied().collect::<Vec<_>>(), Side::BOTH);
        let mut order = Vec::new();
        let mapped = sides.map(|side| order.push(side));
        assert_eq!((order, mapped), (Side::BOTH.to_vec(), PerSide::both(())));
        assert_eq!(sides.zip(sides.swap()).client, (Side::Client, Side::Server));
    }

    #[test]
    fn the_client_sides_error_comes_before_the_server_sides_attempt() {
        let mut tried = Vec::new();
        let mut attempt = |failing: Option<Side>| {
            tried.clear();
            let values = PerSide::try_from_fn(|side| {
                tried.push(side);
                if failing == Some(side) {
                    Err(side)
                } else {
                    Ok(side.index())
                }
            });
            (values, tried.len())
        };
        assert_eq!(attempt(Some(Side::Client)), (Err(Side::Client), 1));
        assert_eq!(attempt(Some(Side::Server)), (Err(Side::Server), 2));
        assert_eq!(attempt(None), (Ok(PerSide::new(0, 1)), 2));
    }
}
