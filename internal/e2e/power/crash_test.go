package power

import (
	"fmt"
	"hash/maphash"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
)

// A Crash is what a disk holds after a loss of power at a moment.
type Crash struct {
	Moment int   // index of the moment
	At     int   // position in the log
	Lost   []int // positions of the writes since the last flush that are missing

	blocks, below map[int64]block
}

// Show makes d hold what the crash has left.
func (c Crash) Show(d *Disk) { d.show(maps.Clone(c.blocks), c.below) }

func (c Crash) String() string { return fmt.Sprintf("entry %d, without %v", c.At, c.Lost) }

// Flushes returns the positions before each flush.
func (d *Disk) Flushes() []int {
	var all []int
	for at, e := range d.log {
		if e.data == nil {
			all = append(all, at)
		}
	}
	return all
}

// Crashes returns what d may hold after a loss of power at each of the moments, which are
// positions in ascending order: what was flushed before, and of what was written since all,
// nothing, all but one, only one, the first ones, and random subsets, that many for each
// moment. It yields nothing twice for a moment. The disk must not be in use.
func (d *Disk) Crashes(moments []int, random *rand.Rand, subsets int) iter.Seq[Crash] {
	return func(yield func(Crash) bool) {
		below, flushed, next := d.safe, 0, 0
		for moment, at := range moments {
			for ; next < at; next++ {
				if d.log[next].data == nil {
					below = maps.Clone(below)
					for _, e := range d.log[flushed:next] {
						below[e.at] = e.data
					}
					flushed = next + 1
				}
			}
			for c := range crashes(d.log[flushed:at], random, subsets) {
				c.Moment, c.At, c.below = moment, at, below
				for i := range c.Lost {
					c.Lost[i] += flushed
				}
				if !yield(c) {
					return
				}
			}
		}
	}
}

// crashes returns what may be left of writes that were not flushed.
func crashes(writes []entry, random *rand.Rand, subsets int) iter.Seq[Crash] {
	return func(yield func(Crash) bool) {
		seen, seed := make(map[uint64]bool), maphash.MakeSeed()
		for lost := range losses(len(writes), random, subsets) {
			c := Crash{blocks: make(map[int64]block)}
			for i, e := range writes {
				if lost[i] {
					c.Lost = append(c.Lost, i)
				} else {
					c.blocks[e.at] = e.data
				}
			}
			id := fingerprint(seed, c.blocks)
			if !seen[id] && !yield(c) {
				return
			}
			seen[id] = true
		}
	}
}

// losses yields which of n writes are lost.
func losses(n int, random *rand.Rand, subsets int) iter.Seq[[]bool] {
	return func(yield func([]bool) bool) {
		all := slices.Repeat([]bool{true}, n)
		if !yield(all) || !yield(make([]bool, n)) {
			return
		}
		for i := range n {
			one, but, rest := make([]bool, n), slices.Clone(all), slices.Clone(all)
			one[i], but[i] = true, false
			clear(rest[:i])
			if !yield(one) || !yield(but) || !yield(rest) {
				return
			}
		}
		for range subsets {
			some := make([]bool, n)
			for i := range some {
				some[i] = random.IntN(2) == 0
			}
			if !yield(some) {
				return
			}
		}
	}
}

// fingerprint tells sets of blocks apart.
func fingerprint(seed maphash.Seed, blocks map[int64]block) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, at := range slices.Sorted(maps.Keys(blocks)) {
		maphash.WriteComparable(&h, at)
		_, _ = h.Write(blocks[at][:])
	}
	return h.Sum64()
}
