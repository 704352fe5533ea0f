//go:build linux

package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube"
)

// An entry is a request that a node has made.
type entry struct {
	at time.Time // of the answer; that of a watch is its first line
	kube.Request
}

// A journal has the requests of all nodes, in the order of their answers.
type journal struct {
	mu      sync.Mutex
	entries []entry
}

func (j *journal) note(r kube.Request) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.entries = append(j.entries, entry{time.Now(), r})
}

func (j *journal) len() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return len(j.entries)
}

// since returns the entries after the first n.
func (j *journal) since(n int) []entry {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.entries[n:])
}

// A tally is how often each request was made.
type tally map[kube.Request]int

func tallyOf(entries []entry) tally {
	t := tally{}
	for _, e := range entries {
		t[e.Request]++
	}
	return t
}

// of returns how often requests of that verb and resource were made, whatever the answer.
func (t tally) of(verb, resource string) (n int) {
	for r, made := range t {
		if r.Verb == verb && r.Resource == resource {
			n += made
		}
	}
	return n
}

// all returns how often requests were made.
func (t tally) all() (n int) {
	for _, made := range t {
		n += made
	}
	return n
}

// rows returns a row for each request: what it is, the answer, how often, and how often
// per unit.
func (t tally) rows(units int) (rows [][]string) {
	keys := slices.SortedFunc(maps.Keys(t), func(a, b kube.Request) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Verb, b.Verb), cmp.Compare(a.Code, b.Code))
	})
	for _, r := range keys {
		code := "none"
		if r.Code != 0 {
			code = fmt.Sprint(r.Code)
		}
		rows = append(rows, []string{r.Verb + " " + r.Resource, code, fmt.Sprint(t[r]), figure(float64(t[r]) / float64(units))})
	}
	return rows
}

// last returns the time of the last entry that want accepts, or zero.
func last(entries []entry, want func(entry) bool) (at time.Time) {
	for _, e := range entries {
		if want(e) {
			at = e.at
		}
	}
	return at
}
