//! What the bucket itself is set to do.

use aws_sdk_s3::types::{BucketVersioningStatus, ObjectLockEnabled};

use super::store::S3Store;
use crate::{Operation, StoreResult};

/// What becomes of the bytes of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletes {
    /// They are gone.
    Free,
    /// They stay as an old version, until somebody or a rule of the bucket removes that.
    LeaveVersions,
    /// They stay as an old version that nobody can remove before its time.
    LeaveLockedVersions,
}

impl S3Store {
    /// What becomes of the bytes of an object that is deleted in this bucket. Needs rights that nothing else needs, and a server
    /// that knows of versions.
    ///
    /// # Errors
    /// What the store answers; it says nothing of other requests.
    pub async fn deletes(&self) -> StoreResult<Deletes> {
        let request = self.client().get_bucket_versioning().bucket(&self.config.bucket).send();
        let answer = self.answer(Operation::Open, None, request).await?;
        // Suspended: what is written and deleted since then leaves nothing.
        if answer.status() != Some(&BucketVersioningStatus::Enabled) {
            return Ok(Deletes::Free);
        }
        let request = self
            .client()
            .get_object_lock_configuration()
            .bucket(&self.config.bucket)
            .send();
        // There are versions in any case, so that they are locked is but one more reason to say so.
        let Ok(answer) = self.answer(Operation::Open, None, request).await else {
            return Ok(Deletes::LeaveVersions);
        };
        let locked = answer.object_lock_configuration().is_some_and(|lock| {
            let has_default = lock.rule().is_some_and(|rule| rule.default_retention().is_some());
            has_default && lock.object_lock_enabled() == Some(&ObjectLockEnabled::Enabled)
        });
        Ok(if locked {
            Deletes::LeaveLockedVersions
        } else {
            Deletes::LeaveVersions
        })
    }
}
