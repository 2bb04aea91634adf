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
        | Command::ReceiveTokens { .. }
        | Command::ReceiveCopyStatus { .. }
        | Command::CopyParameters { .. }
        | Command::Reserve6
        | Command::Release6
        | Command::PreventAllow { prevent: false }
        | Command::StartStop { start: true, load_eject: false, condition: 0 } => Class::Ready,
        Command::Read { .. }
        | Command::Prefetch { .. }
        | Command::Verify { .. }
        | Command::PopulateToken { .. }
        | Command::GetLbaStatus { .. }
        // Exclusive access refuses these as well. Write exclusive must not: Linux takes a disk that does not tell of its
        // cache for one that has none, and never flushes it.
        | Command::ModeSense { .. }
        | Command::ReportOpcodes { .. }
        | Command::ReportTaskManagement { .. } => Class::Reads,
        Command::ModeSelect { .. }
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
