//! The five indexes that Kafka keeps with a segment.

/// An index of a segment, in the order of Kafka's `RemoteStorageManager.IndexType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IndexType {
    /// Offset to position (`.index`).
    Offset = 0,
    /// Timestamp to offset (`.timeindex`).
    Timestamp = 1,
    /// Producer state (`.snapshot`).
    ProducerSnapshot = 2,
    /// Aborted transactions (`.txnindex`); the only one that a segment may lack.
    Transaction = 3,
    /// Leader epochs (`leader-epoch-checkpoint`).
    LeaderEpoch = 4,
}

impl IndexType {
    /// All five; position in the array equals the number.
    pub const ALL: [IndexType; 5] = [
        IndexType::Offset,
        IndexType::Timestamp,
        IndexType::ProducerSnapshot,
        IndexType::Transaction,
        IndexType::LeaderEpoch,
    ];

    /// The index type of a number, `None` outside 0 to 4.
    pub fn from_number(number: i32) -> Option<Self> {
        usize::try_from(number)
            .ok()
            .and_then(|position| Self::ALL.get(position).copied())
    }

    /// The number.
    pub fn number(self) -> usize {
        self as usize
    }

    /// Kafka's name.
    pub fn name(self) -> &'static str {
        match self {
            IndexType::Offset => "OFFSET",
            IndexType::Timestamp => "TIMESTAMP",
            IndexType::ProducerSnapshot => "PRODUCER_SNAPSHOT",
            IndexType::Transaction => "TRANSACTION",
            IndexType::LeaderEpoch => "LEADER_EPOCH",
        }
    }
}
