//! `-s` and `-S` of `zfs list`: two options, and one order, which is that in which they were typed.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};

/// What to sort by: where the first makes no difference, the second does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SortKeys(pub(crate) Vec<SortKey>);

/// A property, and which way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SortKey {
    pub(crate) property: String,
    pub(crate) descending: bool,
}

/// Id, letter, help, and whether it is the other way round.
const OPTIONS: [(&str, char, &str, bool); 2] = [
    ("ascending", 's', "Sort by this property, ascending (repeatable)", false),
    ("descending", 'S', "Sort by this property, descending (repeatable)", true),
];

impl Args for SortKeys {
    fn augment_args(command: Command) -> Command {
        OPTIONS.iter().fold(command, |command, (id, letter, help, _)| {
            command.arg(
                Arg::new(*id).short(*letter).value_name("PROPERTY").help(*help).action(ArgAction::Append),
            )
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SortKeys {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut keys = Vec::new();
        for (id, _, _, descending) in OPTIONS {
            let places = matches.indices_of(id).into_iter().flatten();
            let properties = matches.get_many::<String>(id).into_iter().flatten();
            keys.extend(
                places
                    .zip(properties)
                    .map(|(place, property)| (place, SortKey { property: property.clone(), descending })),
            );
        }
        keys.sort_by_key(|(place, _)| *place);
        Ok(Self(keys.into_iter().map(|(_, key)| key).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_both_directions_keep_the_order_in_which_they_were_typed() {
        let keys = |line: &str| {
            let command = SortKeys::augment_args(Command::new("list").no_binary_name(true));
            let keys = SortKeys::from_arg_matches(&command.get_matches_from(line.split(' '))).unwrap();
            keys.0
                .iter()
                .map(|key| format!("{}{}", key.property, if key.descending { '-' } else { '+' }))
                .collect::<String>()
        };
        assert_eq!(keys("-S used -s name"), "used-name+");
        assert_eq!(keys("-s name -S used"), "name+used-");
        assert_eq!(keys("-Sused -s a -s b -S c"), "used-a+b+c-");
    }
}
