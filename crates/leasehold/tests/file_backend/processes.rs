//! Processes that hold, wait, stop and die.

use super::*;

#[test]
fn a_release_rings_the_next_and_nobody_else() {
    in_directory(async |root| {
        let (a, b, c) = (open(root).await, open(root).await, open(root).await);
        let (mut to_b, mut to_c) = (b.hints(), c.hints());
        let (first, second, third, fourth) = (request("x"), request("x"), request("x"), request("x"));
        granted(&a, &first).await;
        queued(&b, &second).await;
        queued(&c, &third).await;
        queued(&b, &fourth).await;
        release(&a, &first).await;
        let Standing::Holding(grant) = renewed(&b, &second).await else { panic!("not handed over") };
        let provisional = Hint::Granted { id: second.key.id, fence: grant.fence, provisional: true };
        assert_eq!(hint(&mut to_b).await, provisional);
        no_hint(&mut to_c).await;
        release(&b, &second).await;
        assert!(matches!(hint(&mut to_c).await, Hint::Granted { id, .. } if id == third.key.id));
        release(&c, &third).await;
        assert!(matches!(hint(&mut to_b).await, Hint::Granted { id, .. } if id == fourth.key.id));
        Ok(())
    });
}

#[test]
fn a_killed_holder_wakes_the_waiter_at_once() {
    in_directory(async |root| {
        let (mut holder, mut waiter) = Waiter::behind("hold", root).await;
        holder.kill();
        waiter.gets_its_turn().await;
        assert_eq!(endings(&waiter.backend, "x").await, [Ending::Disconnected]);
        assert_eq!(files(root.join("test/presence")).len(), 1, "the dead one's presence is tidied");
        Ok(())
    });
}

#[test]
fn whoever_dies_together_the_first_survivor_hears_of_it() {
    in_directory(async |root| {
        let mut dying = vec![Process::start("hold", root, "x")];
        dying.extend((0..3).map(|_| Process::start("queue", root, "x")));
        let mut waiter = Waiter::queue(open(root).await).await;
        assert_eq!(waiter.ahead, 3);
        dying.iter_mut().for_each(Process::kill);
        waiter.gets_its_turn().await;
        Ok(())
    });
}

#[test]
fn a_waiter_whose_neighbour_leaves_watches_the_next_one_ahead() {
    in_directory(async |root| {
        let (a, c) = (open(root).await, open(root).await);
        let (first, third) = (take(&a, "x").await, request("x"));
        let mut second = Process::start("queue", root, "x");
        queued(&c, &third).await;
        let mut fourth = Waiter::queue(open(root).await).await;
        assert_eq!(release(&c, &third).await, Released::LeftQueue);
        assert_eq!(hint(&mut fourth.hints).await, changed("x"));
        assert!(fourth.waits().await);
        release(&a, &first).await;
        no_hint(&mut fourth.hints).await;
        second.kill();
        fourth.gets_its_turn().await;
        Ok(())
    });
}

#[test]
fn the_first_waiter_hears_of_every_holder_even_of_one_granted_later() {
    in_directory(async |root| {
        let a = open(root).await;
        let writer = take(&a, "x").await;
        let mut reader = Process::start("queue shared", root, "x");
        let _other = Process::start("queue shared", root, "x");
        let mut waiter = Waiter::queue(open(root).await).await;
        release(&a, &writer).await;
        assert_eq!(hint(&mut waiter.hints).await, changed("x"), "the first reader is someone new to watch");
        assert!(waiter.waits().await);
        reader.kill();
        assert_eq!(hint(&mut waiter.hints).await, changed("x"));
        assert!(waiter.waits().await, "the other reader still holds");
        Ok(())
    });
}

#[test]
fn a_stopped_holder_keeps_its_lock() {
    in_directory(async |root| {
        let holder = Process::start("hold", root, "x");
        holder.signal("-STOP");
        let mut waiter = Waiter::queue(open(root).await).await;
        no_hint(&mut waiter.hints).await;
        assert!(waiter.waits().await);
        holder.signal("-CONT");
        assert!(waiter.waits().await);
        Ok(())
    });
}

#[test]
fn a_stopped_waiter_loses_its_turn_to_the_next_when_it_does_not_confirm_it() {
    opened_by_clock(async |root, clock, a| {
        let (holder, next) = (take(&a, "x").await, request("x"));
        let b = open_by(root, clock).await;
        let stopped = Process::start("queue", root, "x");
        stopped.signal("-STOP");
        assert_eq!(queued(&b, &next).await, 1);
        assert_eq!(release(&a, &holder).await, Released::Freed);
        let Standing::Waiting(place) = renewed(&b, &next).await else { panic!("the stopped one has its turn") };
        clock.advance(place.ask_again_in.expect("the next one learns when to ask"));
        assert!(holds(&b, &next).await);
        assert_eq!(endings(&b, "x").await, [Ending::Expired, Ending::Released]);
        Ok(())
    });
}

#[test]
fn the_handle_of_a_killed_process_is_gone() {
    in_directory(async |root| {
        let a = open(root).await;
        for resource in ["renewed", "released"] {
            let mut holder = Process::start("hold", root, resource);
            let lines = lines_of(&record_of(root, resource));
            let id = lines[1]["entry"]["id"].as_str().expect("an id").parse()?;
            let mut handed_on = request(resource);
            handed_on.key.id = id;
            assert!(holds(&a, &handed_on).await, "a handle works while its process lives");
            holder.kill();
            match resource {
                "renewed" => assert_eq!(renewed(&a, &handed_on).await, Standing::Gone),
                _ => assert_eq!(release(&a, &handed_on).await, Released::Gone),
            }
            assert_eq!(endings(&a, resource).await, [Ending::Disconnected]);
        }
        Ok(())
    });
}

#[test]
fn a_lent_presence_lives_until_the_child_is_gone() {
    in_directory(async |root| {
        let (mut parent, mut waiter) = Waiter::behind("lend", root).await;
        parent.kill();
        no_hint(&mut waiter.hints).await;
        assert!(waiter.waits().await, "the child still has it");
        waiter.gets_its_turn().await;
        Ok(())
    });
}

#[test]
fn a_closed_instance_is_dead_to_others() {
    opened(async |root, a| {
        take(&a, "x").await;
        let mut waiter = Waiter::queue(open(root).await).await;
        drop(a);
        waiter.gets_its_turn().await;
        assert_eq!(files(root.join("test/presence")).len(), 1);
        Ok(())
    });
}

#[test]
fn a_detached_lease_survives_the_kill_of_its_asker_and_a_detached_wait_does_not() {
    in_directory(async |root| {
        let mut holder = Process::start("hold detached", root, "x");
        let mut waiter = Process::start("queue detached", root, "x");
        let a = open(root).await;
        let list = async || a.list(&ListFilter::new(Names::All)).await.unwrap().leases;
        assert_eq!(list().await.len(), 2);
        holder.kill();
        waiter.kill();
        let left = list().await;
        assert_eq!(left.len(), 1);
        assert!(matches!(left[0].state, LeaseState::Holding { .. }));
        assert!(left[0].expires_in.is_some_and(|left| left <= Ttl::DEFAULT.get()));
        assert_eq!(endings(&a, "x").await, [Ending::Disconnected]);
        Ok(())
    });
}
