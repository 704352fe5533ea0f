package autoconf

import "time"

// The durations of a [Manager].
const (
	defaultGrace    = 10 * time.Second
	defaultDebounce = 100 * time.Millisecond
	maxDelay        = time.Second // of a look after the first event
	defaultResync   = 30 * time.Second
)

// pollInterval is how often [Manager.Run] looks for what it cannot be told of:
// the end of another's lock, and everything where nothing can be watched.
const pollInterval = time.Second

// A schedule says when to look next. Events are taken together: one look
// follows when there has been quiet, or when the first has waited for long
// enough.
type schedule struct {
	quiet, longest time.Duration
	first, last    time.Time // of the events since the last look; zero: none
	planned        time.Time // a look for another reason
}

// event notes that something happened.
func (s *schedule) event(now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	s.last = now
}

// looked notes that a look was taken, and when there is to be another one even
// if nothing happens.
func (s *schedule) looked(now time.Time, wait time.Duration) {
	s.first, s.last = time.Time{}, time.Time{}
	s.planned = now.Add(wait)
}

// due returns when to look.
func (s *schedule) due() time.Time {
	if s.first.IsZero() {
		return s.planned
	}
	due := s.last.Add(s.quiet)
	for _, t := range []time.Time{s.first.Add(s.longest), s.planned} {
		if t.Before(due) {
			due = t
		}
	}
	return due
}
