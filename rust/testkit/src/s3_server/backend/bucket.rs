//! Purpose: the operations on buckets themselves.

use super::Backend;
use s3s::dto::*;
use s3s::{S3Error, S3Result, s3_error};

/// The region whose buckets have no location constraint.
const DEFAULT_REGION: &str = "us-east-1";

impl Backend {
    pub(super) async fn create_bucket_impl(&self, input: CreateBucketInput) -> S3Result<CreateBucketOutput> {
        let constraint = input
            .create_bucket_configuration
            .and_then(|configuration| configuration.location_constraint);
        let asked = constraint
            .as_ref()
            .map_or(DEFAULT_REGION, BucketLocationConstraint::as_str);
        if asked != &*self.region {
            return Err(s3_error!(
                IllegalLocationConstraintException,
                "The {asked} location constraint is incompatible for the region specific endpoint this request was sent to."
            ));
        }
        let bucket = input.bucket.clone();
        let created = self
            .change(move |store| store.create_bucket(&bucket).map_err(S3Error::internal_error))
            .await?;
        if !created {
            return Err(s3_error!(
                BucketAlreadyOwnedByYou,
                "Your previous request to create the named bucket succeeded and you already own it."
            ));
        }
        Ok(CreateBucketOutput {
            location: Some(format!("/{}", input.bucket)),
        })
    }

    pub(super) fn head_bucket_impl(&self) -> HeadBucketOutput {
        HeadBucketOutput {
            bucket_region: Some(self.region.to_string()),
            ..Default::default()
        }
    }

    pub(super) fn get_bucket_location_impl(&self) -> GetBucketLocationOutput {
        let constraint = (&*self.region != DEFAULT_REGION).then(|| self.region.to_string().into());
        GetBucketLocationOutput {
            location_constraint: constraint,
        }
    }
}
