package scratch

import (
	"strings"
	"testing"
)

type blob struct{ A, B string }

func benchStore(b *testing.B) (Store[blob], Key, blob) {
	b.Helper()
	return Store[blob]{Dir: b.TempDir()}, Key{"net", "c0ffee", "eth0"}, blob{A: strings.Repeat("x", 4000)}
}

func BenchmarkPut(b *testing.B) {
	s, k, v := benchStore(b)
	for b.Loop() {
		if err := s.Put(k, Planned, v); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Delete(k); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkPutAgain(b *testing.B) {
	s, k, v := benchStore(b)
	for b.Loop() {
		if err := s.Put(k, Planned, v); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNote(b *testing.B) {
	s, k, v := benchStore(b)
	for b.Loop() {
		b.StopTimer()
		if err := s.Put(k, Planned, v); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := s.Note(Record[blob]{Key: k, State: Added, Value: v}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s, k, v := benchStore(b)
	if err := s.Put(k, Planned, v); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.Get(k); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetMissing(b *testing.B) {
	s, k, _ := benchStore(b)
	for b.Loop() {
		if _, err := s.Get(k); err == nil {
			b.Fatal("found")
		}
	}
}

func BenchmarkDelete(b *testing.B) {
	s, k, v := benchStore(b)
	for b.Loop() {
		b.StopTimer()
		if err := s.Put(k, Planned, v); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := s.Delete(k); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	s, k, _ := benchStore(b)
	for b.Loop() {
		l, err := s.Lock(b.Context(), k.ContainerID)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}
