package lifecycle

import (
	"fmt"
	"testing"

	"github.com/metacni/metacni/scratch"
)

// What a whole ADD and DEL cost beside the plugins.
func BenchmarkAddDel(b *testing.B) {
	n := newNode(b)
	for b.Loop() {
		n.add(eth0)
		n.del(eth0)
	}
}

// The part of it that a container waits for.
func BenchmarkAdd(b *testing.B) {
	n := newNode(b)
	for b.Loop() {
		n.add(eth0)
		b.StopTimer()
		n.del(eth0)
		b.StartTimer()
	}
}

// The same without the disk's share: recorded once, checked each time.
func BenchmarkCheck(b *testing.B) {
	n := newNode(b)
	n.add(eth0)
	for b.Loop() {
		if err := n.Check(b.Context(), eth0); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDelWithoutRecord(b *testing.B) {
	n := newNode(b)
	n.add(key("c2", "eth0"))
	for b.Loop() {
		n.del(eth0)
	}
}

// GC of a node on which all is in order.
func BenchmarkGC(b *testing.B) {
	n := newNode(b)
	var valid []scratch.Key
	for i := range 200 {
		k := key(fmt.Sprint("c", i), "eth0")
		n.add(k)
		valid = append(valid, k)
	}
	list := validFor(valid...)
	for b.Loop() {
		if err := n.GC(b.Context(), "multi", list, nil); err != nil {
			b.Fatal(err)
		}
	}
}
