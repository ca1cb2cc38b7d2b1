//! Shortest paths through a graph.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::random::mix;

/// Length of a path: its delay in nanoseconds, the number of its links, and a sum that makes no two paths equally long.
type Length = (u64, u64, u128);

/// Undirected graph with lengths.
#[derive(Debug)]
pub(super) struct Paths {
    /// For each vertex, the indices of its links and their other ends.
    neighbors: Vec<Vec<(usize, usize)>>,
    lengths: Vec<Length>,
}

impl Paths {
    /// Creates a graph of vertices below `count`, with the ends of each link and its delay in nanoseconds.
    pub(super) fn new(count: usize, links: impl IntoIterator<Item = ([usize; 2], u64)>) -> Paths {
        let mut paths = Paths {
            neighbors: vec![Vec::new(); count],
            lengths: Vec::new(),
        };
        for (n, ([here, there], delay)) in links.into_iter().enumerate() {
            paths.neighbors[here].push((n, there));
            paths.neighbors[there].push((n, here));
            // Break ties the same way from both ends: both directions of a connection take one path.
            paths.lengths.push((delay, 1, mix(n as u64).into()));
        }
        paths
    }

    /// Returns for each vertex the link over which its shortest path to `to` begins; `None` for `to` itself, and where there
    /// is no path.
    pub(super) fn next_links(&self, to: usize) -> Vec<Option<usize>> {
        let mut next = vec![None; self.neighbors.len()];
        let mut is_known = vec![false; self.neighbors.len()];
        let mut queue = BinaryHeap::from([Reverse(((0, 0, 0), to, None))]);
        while let Some(Reverse((length, vertex, link))) = queue.pop() {
            if std::mem::replace(&mut is_known[vertex], true) {
                continue;
            }
            next[vertex] = link;
            for (link, neighbor) in &self.neighbors[vertex] {
                if !is_known[*neighbor] {
                    let further = add(length, self.lengths[*link]);
                    queue.push(Reverse((further, *neighbor, Some(*link))));
                }
            }
        }
        next
    }
}

fn add(path: Length, link: Length) -> Length {
    (path.0.saturating_add(link.0), path.1 + link.1, path.2 + link.2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the vertices of the path between two of them.
    fn path(paths: &Paths, ends: &[[usize; 2]], from: usize, to: usize) -> Vec<usize> {
        let next = paths.next_links(to);
        let mut path = vec![from];
        while let Some(link) = next[path[path.len() - 1]] {
            let [here, there] = ends[link];
            path.push(here + there - path[path.len() - 1]);
        }
        path
    }

    #[test]
    fn the_shorter_way_is_taken_and_the_unreachable_has_none() {
        let ends = [[0, 1], [1, 2], [0, 2], [3, 4]];
        let paths = Paths::new(5, ends.into_iter().zip([1, 1, 3, 1]));
        assert_eq!(path(&paths, &ends, 0, 2), [0, 1, 2]);
        assert_eq!(path(&paths, &ends, 2, 0), [2, 1, 0]);
        assert_eq!(paths.next_links(4), [None, None, None, Some(3), None]);
    }

    proptest! {
        /// Where all links are equally long there are many shortest paths; both directions take one of them.
        #[test]
        fn both_directions_take_one_path(chords in prop::collection::vec((0..12usize, 1..11usize), 0..12)) {
            let ring = (0..12).map(|n| [n, (n + 1) % 12]);
            let ends: Vec<[usize; 2]> = ring.chain(chords.into_iter().map(|(n, by)| [n, (n + by) % 12])).collect();
            let paths = Paths::new(12, ends.iter().map(|ends| (*ends, 1000)));
            for from in 0..12 {
                for to in 0..12 {
                    let mut back = path(&paths, &ends, to, from);
                    back.reverse();
                    prop_assert_eq!(path(&paths, &ends, from, to), back);
                }
            }
        }
    }
}
