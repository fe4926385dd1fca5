//! Listing: which resources have a record, and what is on it right now.

use std::sync::Arc;

use super::{
    FileBackend,
    directory::{Directory, files},
    elsewhere,
    names::{self, FileName},
    record::{self, Times},
};
use crate::{
    Result,
    lease::{LeaseRecord, ListFilter, Names, Page, Resource},
};

impl FileBackend {
    /// One page of live leases, each resource settled first: the dead are recorded, not shown.
    pub(super) async fn page(&self, filter: &ListFilter) -> Result<Page> {
        let mut page = Page::default();
        let mut told = 0;
        let mut last = None;
        for resource in self.resources(filter).await? {
            if told >= filter.limit {
                page.next = last;
                break;
            }
            // A long list keeps nobody else waiting.
            tokio::task::yield_now().await;
            match self.settled(&resource).await {
                Ok(leases) if leases.is_empty() => {}
                Ok(leases) => {
                    page.leases.extend(leases);
                    told += 1;
                    last = Some(resource);
                }
                Err(error) if matches!(filter.names, Names::Exactly(_)) => return Err(error),
                Err(error) => tracing::warn!(%resource, %error, "a resource is missing in the list"),
            }
        }
        Ok(page)
    }

    async fn settled(&self, resource: &Resource) -> Result<Vec<LeaseRecord>> {
        self.operate(resource, &[], |state, context, effects| {
            state.settle(context, effects);
            state.records(resource, context)
        })
        .await
    }

    /// The names that the filter wants, sorted.
    async fn resources(&self, filter: &ListFilter) -> Result<Vec<Resource>> {
        let mut found = match &filter.names {
            Names::Exactly(one) => vec![one.clone()],
            _ => self.stored_resources().await?,
        };
        found.retain(|resource| {
            filter.names.include(resource) && filter.after.as_ref().is_none_or(|after| resource > after)
        });
        found.sort();
        Ok(found)
    }

    async fn stored_resources(&self) -> Result<Vec<Resource>> {
        let (directory, boot) = (Arc::clone(&self.directory), self.boot.clone());
        let Times { now, wall, .. } = self.times();
        elsewhere(&self.runtime, move || stored_resources(&directory, &Times { now, wall, boot: &boot })).await
    }
}

fn stored_resources(directory: &Directory, times: &Times<'_>) -> Result<Vec<Resource>> {
    let resource = |(name, path): (String, std::path::PathBuf)| match names::read(&name) {
        FileName::Of(resource) => Some(resource),
        FileName::Other => None,
        FileName::Hashed => record::resource_of(&path, times).unwrap_or_else(|error| {
            tracing::warn!(%error, "a resource is missing in the list");
            None
        }),
    };
    Ok(files(&directory.records())?.into_iter().filter_map(resource).collect())
}
