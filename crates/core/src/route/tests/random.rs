//! Tests properties of any routes, requests and texts.

use proptest::prelude::*;

use super::*;

proptest! {
    /// Checks that a hidden route takes nothing that the route that hides it does not take, too.
    #[test]
    fn what_is_hidden_never_wins(
        conditions in prop::collection::vec(prop::collection::vec(any_condition(), 0..3), 2..5),
        requests in prop::collection::vec(any_request(), 1..20),
    ) {
        let routes = conditions.into_iter().enumerate().map(|(n, c)| route(&n.to_string(), c));
        let table = Table::new(routes.collect());
        let hidden: Vec<usize> = table.hidden().map(|(later, _)| later).collect();
        for request in &requests {
            let winner = table.decide(&request.facts()).map(|(n, _)| n);
            prop_assert!(winner.is_none_or(|n| !hidden.contains(&n)), "{winner:?} {hidden:?}");
            if let Some((_, route)) = table.decide(&request.facts()) {
                prop_assert!(route.contradiction().is_none());
            }
            prop_assert_eq!(table.explain(&request.facts()).winner, winner);
        }
    }

    /// Checks that no text makes a reader panic, and that a text that is read is written unchanged.
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,12}|[*.a-z:\\[\\]0-9/%?-]{0,12}") {
        fn check<T: std::str::FromStr + std::fmt::Display>(text: &str) -> Result<(), TestCaseError> {
            let Ok(value) = text.parse::<T>() else { return Ok(()) };
            let written = value.to_string();
            let again = written.parse::<T>().map(|v| v.to_string()).ok();
            prop_assert_eq!(again, Some(written));
            Ok(())
        }
        check::<HostPattern>(&text)?;
        check::<PathText>(&text)?;
        check::<Extension>(&text)?;
        check::<Token>(&text)?;
        check::<Redirect>(&text)?;
        check::<Pattern>(&text)?;
        let _ = bare(&text);
    }
}

fn any_condition() -> impl Strategy<Value = Condition> {
    let hosts = prop::sample::subsequence(vec!["a.test", "b.test", "*.test", "*.a.test"], 1..3);
    let paths = prop::sample::subsequence(vec!["/", "/a", "/a.gif", "/a/b.tar.gz", "/cgi-bin/x"], 1..3);
    let prefixes = prop::sample::subsequence(vec!["/", "/a", "/a/", "/cgi"], 1..3);
    let extensions = prop::sample::subsequence(vec!["gif", "gz", "tar.gz"], 1..3);
    let methods = prop::sample::subsequence(vec!["GET", "HEAD", "POST"], 1..3);
    let want = prop_oneof![
        Just(Want::Present),
        Just(Want::Absent),
        Just(is("1")),
        Just(Want::Value(vec![
            Text::Prefix("1".into()),
            Text::Exact("2".into())
        ])),
    ];
    prop_oneof![
        hosts.prop_map(|l| host(&l)),
        paths.prop_map(|l| Condition::Path(list(&l))),
        prefixes.prop_map(|l| Condition::PathPrefix(list(&l))),
        extensions.prop_map(|l| Condition::Extension(list(&l))),
        methods.prop_map(|l| Condition::Method(list(&l))),
        any::<bool>().prop_map(Condition::Query),
        any::<bool>().prop_map(Condition::Cgi),
        want.clone().prop_map(|w| header("x", w)),
        (prop::sample::select(vec!["", "a"]), want).prop_map(|(name, w)| cookie(name, w)),
    ]
}

fn any_request() -> impl Strategy<Value = Request> {
    (
        prop::sample::select(vec!["a.test", "b.test", "c.a.test", ""]),
        prop::sample::select(vec!["/", "/a", "/a.gif", "/a/b.tar.gz", "/cgi-bin/x", "/a?b"]),
        prop::sample::select(vec!["GET", "HEAD", "POST"]),
        prop::sample::select(vec!["", "1", "12", "2"]),
        prop::sample::select(vec!["", "a=1", "b=1", "a=12; b=2"]),
    )
        .prop_map(|(host, path, method, x, cookies)| {
            let request = get(&format!("{host}{path}")).method(method);
            let request = match x {
                "" => request,
                x => request.header("X", x),
            };
            match cookies {
                "" => request,
                cookies => request.header("cookie", cookies),
            }
        })
}
