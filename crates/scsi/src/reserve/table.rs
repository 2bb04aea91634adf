//! Which commands a reservation lets through: each command is of one class, and a nexus is refused whole classes
//! (SPC-4 table "SPC-4 commands that are allowed in the presence of various reservations", SBC-3 §5.1).

use crate::cdb::Command;

/// What a command is to a reservation, and to a target port that is not active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Who the unit is: always answered, from every target port.
    Identity,
    /// What state the unit and its reservations are in: always answered unless the port is out of use.
    State,
    /// The same, but not where a port stands by.
    Ready,
    /// Refused where reads are.
    Reads,
    /// Refused where writes are.
    Writes,
}

/// The class of a command.
pub(crate) fn class(command: &Command) -> Class {
    match command {
        Command::RequestSense { .. }
        | Command::Inquiry { .. }
        | Command::ReportLuns { .. }
        | Command::ReportTargetPortGroups { .. } => Class::Identity,
        Command::LogSense { .. }
        | Command::PersistentReserveIn { .. }
        | Command::PersistentReserveOut { .. } => Class::State,
        Command::TestUnitReady
        | Command::ReadCapacity10
        | Command::ReadCapacity16 { .. }
        | Command::Reserve6
        | Command::Release6
        | Command::PreventAllow { prevent: false }
        | Command::StartStop { start: true, load_eject: false, condition: 0 } => Class::Ready,
        Command::Read { .. }
        | Command::Prefetch { .. }
        | Command::Verify { .. }
        | Command::PopulateToken { .. }
        | Command::ReceiveTokens { .. }
        | Command::GetLbaStatus { .. } => Class::Reads,
        // These hold something back from whoever has no business here, though they change nothing: the standard has
        // them among what every type of reservation refuses.
        Command::ModeSense { .. }
        | Command::ModeSelect { .. }
        | Command::ReportOpcodes { .. }
        | Command::ReportTaskManagement { .. }
        | Command::ReceiveCopyStatus { .. }
        | Command::CopyParameters { .. }
        | Command::CopyAbort { .. }
        | Command::Write { .. }
        | Command::WriteVerify { .. }
        | Command::WriteSame { .. }
        | Command::OrWrite { .. }
        | Command::CompareAndWrite { .. }
        | Command::Unmap { .. }
        | Command::ExtendedCopy { .. }
        | Command::WriteUsingToken { .. }
        | Command::SynchronizeCache { .. }
        | Command::StartStop { .. }
        | Command::PreventAllow { .. } => Class::Writes,
    }
}

/// What another initiator's RESERVE(6) lets through (SPC-2).
pub(crate) fn passes_reserve6(command: &Command) -> bool {
    matches!(
        command,
        Command::Inquiry { .. }
            | Command::ReportLuns { .. }
            | Command::RequestSense { .. }
            | Command::LogSense { .. }
            | Command::Release6
            | Command::PreventAllow { prevent: false }
    )
}
