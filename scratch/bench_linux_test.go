package scratch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

type blob struct{ A, B string }

func benchStore(b *testing.B) (Store[blob], Key, blob) {
	b.Helper()
	return Store[blob]{Dir: b.TempDir()}, Key{"net", "c0ffee", "eth0"}, blob{A: strings.Repeat("x", 4000)}
}

// benchLock takes a lock for the whole benchmark: it has its own.
func benchLock(b *testing.B, s Store[blob], k Key) *Lock {
	b.Helper()
	l, err := s.Lock(b.Context(), k.ContainerID)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Unlock() })
	return l
}

func BenchmarkPut(b *testing.B) {
	s, k, v := benchStore(b)
	l := benchLock(b, s, k)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Put(l, Record[blob]{Key: k, State: Planned, Value: v}); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Delete(l, k); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkPutAgain(b *testing.B) {
	s, k, v := benchStore(b)
	l := benchLock(b, s, k)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.Put(l, Record[blob]{Key: k, State: Planned, Value: v}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkNote(b *testing.B) {
	s, k, v := benchStore(b)
	l := benchLock(b, s, k)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if err := s.Put(l, Record[blob]{Key: k, State: Planned, Value: v}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := s.Note(l, Record[blob]{Key: k, State: Added, Value: v}); err != nil {
			b.Fatal(err)
		}
	}
}

// An attachment's life as a plugin sees it: ADD and DEL, each with the lock.
func BenchmarkAddDel(b *testing.B) {
	s, k, v := benchStore(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := errors.Join(under(s, k.ContainerID, func(l *Lock) error {
			return errors.Join(s.Put(l, Record[blob]{Key: k, State: Planned, Value: v}), s.Note(l, Record[blob]{Key: k, State: Added, Value: v}))
		}), under(s, k.ContainerID, func(l *Lock) error {
			return s.Consume(b.Context(), l, k, func(_ context.Context, r Record[blob]) error { return s.Note(l, r) })
		})); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetMissing(b *testing.B) {
	s, k, _ := benchStore(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Get(k); err == nil {
			b.Fatal("found")
		}
	}
}

func BenchmarkDelete(b *testing.B) {
	s, k, v := benchStore(b)
	l := benchLock(b, s, k)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if err := s.Put(l, Record[blob]{Key: k, State: Planned, Value: v}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := s.Delete(l, k); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLockUnlock(b *testing.B) {
	s, k, _ := benchStore(b)
	b.ReportAllocs()
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

// What the records of others cost: finding one must not depend on how many
// there are. Making them takes long; TMPDIR=/dev/shm saves that, and -short the
// most.
func BenchmarkAmong(b *testing.B) {
	s, k, v := benchStore(b)
	if err := putRecord(s, k, Added, v); err != nil {
		b.Fatal(err)
	}
	have := 1
	for _, n := range []int{1, 1000, 100_000} {
		if n > 1000 && testing.Short() {
			b.Skip("many records")
		}
		benchFill(b, s, k, have, n)
		have = n
		records := fmt.Sprintf("/records=%d", n)
		b.Run("Get"+records, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Get(k); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("LockRecordsUnlock"+records, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := under(s, "another", func(l *Lock) error {
					rs, err := s.Records(b.Context(), l)
					if len(rs) != 0 {
						b.Error(len(rs))
					}
					return err
				}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("Container"+records, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if rs, err := s.Container(b.Context(), k.ContainerID); err != nil || len(rs) != 1 {
					b.Fatal(len(rs), err)
				}
			}
		})
		b.Run("List"+records, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				found := 0
				for _, err := range s.List(b.Context()) {
					if err != nil {
						b.Fatal(err)
					}
					found++
				}
				if found != n {
					b.Fatalf("%d records, want %d", found, n)
				}
			}
		})
	}
}

// benchFill copies the record k for other containers, the have'th to before the
// n'th, without waiting for the disk.
func benchFill(b *testing.B, s Store[blob], k Key, have, n int) {
	b.Helper()
	text, err := os.ReadFile(filepath.Join(s.Dir, fileName(k)))
	if err != nil {
		b.Fatal(err)
	}
	for i := have; i < n; i++ {
		id := fmt.Sprintf("%064x", i)
		json := strings.Replace(strings.TrimSpace(string(text))[prefix:], k.ContainerID, id, 1)
		line := fmt.Sprintf("%.8x %s\n", sha256.Sum256([]byte(json)), json)
		if err := os.WriteFile(filepath.Join(s.Dir, fileName(Key{k.Network, id, k.IfName})), []byte(line), 0o600); err != nil {
			b.Fatal(err)
		}
	}
}
