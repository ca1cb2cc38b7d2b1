//! Remembers which servers an operator drained, by name: a name may get other addresses later.

/// Commands of an operator. A server obeys the newest one that names it.
#[derive(Debug, Default)]
pub(super) struct Drains {
    /// Names with their newest command, the oldest first; true if it drains.
    commands: Vec<(String, bool)>,
}

impl Drains {
    /// Remembers a command, in place of an earlier one for the same name.
    pub(super) fn command(&mut self, name: &str, drain: bool) {
        self.forget(name);
        self.commands.push((name.to_owned(), drain));
        self.tidy();
    }

    /// Forgets the command for a name that no server has any more.
    pub(super) fn forget(&mut self, name: &str) {
        self.commands.retain(|(named, _)| named != name);
        self.tidy();
    }

    /// Removes commands that undo nothing, because no older one drains.
    fn tidy(&mut self) {
        let of_use = self.commands.iter().position(|(_, drain)| *drain);
        self.commands.drain(..of_use.unwrap_or(self.commands.len()));
    }

    /// Returns whether a server is drained that has the names for which `is_called` is true.
    pub(super) fn covers(&self, is_called: impl Fn(&str) -> bool) -> bool {
        let mut newest_first = self.commands.iter().rev();
        newest_first
            .find(|(name, _)| is_called(name))
            .is_some_and(|(_, drain)| *drain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_undoes_nothing_is_forgotten() {
        let mut drains = Drains::default();
        for (name, drain, left) in [
            ("a", false, 0),
            ("web", true, 1),
            ("a", false, 2),
            ("b", true, 3),
            ("a", false, 3),
            ("web", false, 3),
            ("b", false, 0),
        ] {
            drains.command(name, drain);
            assert_eq!(drains.commands.len(), left, "{name} {drain}");
        }
        drains.command("web", true);
        drains.command("a", false);
        drains.forget("web");
        assert!(drains.commands.is_empty());
    }
}
