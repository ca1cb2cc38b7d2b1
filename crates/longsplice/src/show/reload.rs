//! Shows the result of `longsplice reload`.

use crate::reload::Reloaded;

/// Describes the changes in one line.
pub(crate) fn reloaded(done: &Reloaded) -> String {
    let mut said = vec![match done.listeners {
        1 => "1 listener".to_owned(),
        n => format!("{n} listeners"),
    }];
    for (names, what) in [(&done.added, "new"), (&done.removed, "gone")] {
        if !names.is_empty() {
            said.push(format!("{what}: {}", names.join(", ")));
        }
    }
    match done.ended {
        0 => {}
        1 => said.push("1 open connection ends".into()),
        n => said.push(format!("{n} open connections end")),
    }
    format!(
        "generation {} is in force: {}\n",
        done.config_generation,
        said.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_is_said_and_nothing_else() {
        let quiet = Reloaded {
            config_generation: 2,
            listeners: 1,
            ..Reloaded::default()
        };
        assert_eq!(reloaded(&quiet), "generation 2 is in force: 1 listener\n");
        let busy = Reloaded {
            config_generation: 3,
            listeners: 2,
            added: vec!["a".into(), "b".into()],
            removed: vec!["c".into()],
            ended: 7,
        };
        assert_eq!(
            reloaded(&busy),
            "generation 3 is in force: 2 listeners; new: a, b; gone: c; 7 open connections end\n"
        );
    }
}
