//! What is logged: by `MILLPOND_LOG`, or by default.
//!
//! A word that is no level is a module's name to the filter, and to name one module silences all others. So a slip of
//! the pen (`warning`) would silence everything, and nobody would learn of a broken disk. What cannot be understood is
//! said, and the default holds then.

use std::env::{self, VarError};

use tracing_subscriber::{
    EnvFilter,
    filter::{Directive, LevelFilter},
};

const VARIABLE: &str = "MILLPOND_LOG";

/// Alerts are logged, whatever else is wanted, unless something is said of them.
const ALERTS: &str = "millpond::alert";

/// What this library warns of is what strangers sent, in their words and as often as they like. Why a connection ended we say
/// ourselves, within bounds.
const TLS: &str = "rustls";

/// What a directive may begin with, if it is only a name.
const MODULES: [&str; 9] = ["disk", "engine", "iscsi", "l2arc", "millpond", "nbd", "pool", "scsi", "server"];

/// What is logged, if by default that is `default`; and what is wrong with the variable.
pub(crate) fn filter(default: &str) -> (EnvFilter, Option<String>) {
    let told = match env::var(VARIABLE) {
        Ok(text) if text.trim().is_empty() => return (EnvFilter::new(default), None),
        Ok(text) => understood(&text).map_err(|why| format!("'{text}' {why}")),
        Err(VarError::NotPresent) => return (EnvFilter::new(default), None),
        Err(VarError::NotUnicode(_)) => Err("is no text".to_owned()),
    };
    match told {
        Ok(filter) => (filter, None),
        Err(why) => {
            (EnvFilter::new(default), Some(format!("{VARIABLE} {why}: what is logged by default is logged")))
        }
    }
}

/// Understands the variable; the reason, to stand behind its text.
fn understood(text: &str) -> Result<EnvFilter, String> {
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    // Names of spans and their fields, in brackets, are the filter's own affair.
    let plain = !text.contains(['[', '{']);
    let is_known = |word: &str| {
        word.parse::<LevelFilter>().is_ok()
            || word.split("::").next().is_some_and(|module| MODULES.contains(&module))
    };
    if let Some(odd) = words().find(|word| plain && !word.contains('=') && !is_known(word)) {
        return Err(format!(
            "cannot be understood: '{odd}' is neither a level (off, error, warn, info, debug, trace) nor a module ({})",
            MODULES.join(", ")
        ));
    }
    let given = words().collect::<Vec<_>>().join(",");
    let mut filter = EnvFilter::try_new(given).map_err(|error| format!("cannot be understood: {error}"))?;
    let targets = || words().map(|word| word.split('=').next().unwrap_or(word));
    let of_alerts = targets().any(|target| target.starts_with("millpond") && ALERTS.starts_with(target));
    let of_tls = targets().any(|target| target.starts_with(TLS));
    for (is_named, level) in [(of_alerts, format!("{ALERTS}=info")), (of_tls, format!("{TLS}=error"))] {
        if !is_named && let Ok(level) = level.parse::<Directive>() {
            filter = filter.add_directive(level);
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_is_no_level_and_no_module_does_not_silence_the_others() {
        for text in ["warning", "warn,iscssi", "iscsi=lots", "info debug"] {
            let why = understood(text).unwrap_err();
            assert!(why.contains("cannot be understood: "), "{text}: {why}");
        }
        assert!(understood("warn,iscssi").unwrap_err().contains("'iscssi' is neither a level"));
        for text in
            ["warn", "WARN", "3", "iscsi", "engine::zil", "warn, iscsi=debug", "server[op{x=1}]=trace"]
        {
            assert!(understood(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn alerts_are_logged_unless_something_is_said_of_them() {
        let logged = |text: &str| understood(text).unwrap().to_string();
        for text in ["error", "iscsi=debug", "off"] {
            assert!(logged(text).contains("millpond::alert=info"), "{text}: {}", logged(text));
        }
        for text in ["error,millpond::alert=off", "millpond=error"] {
            assert!(!logged(text).contains("millpond::alert=info"), "{text}: {}", logged(text));
        }
    }

    #[test]
    fn what_strangers_say_of_tls_is_not_logged_unless_that_is_asked_for_by_name() {
        let logged = |text: &str| understood(text).unwrap().to_string();
        for text in ["trace", "warn,iscsi=debug"] {
            assert!(logged(text).contains("rustls=error"), "{text}: {}", logged(text));
        }
        for text in ["warn,rustls=debug", "rustls::msgs=warn"] {
            assert!(!logged(text).contains("rustls=error"), "{text}: {}", logged(text));
        }
    }
}
