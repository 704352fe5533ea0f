package nodetest

import (
	"bytes"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// A Log is a log that is read while it is written.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Count returns how often the log has these words.
func (l *Log) Count(words string) int { return strings.Count(l.String(), words) }

// Notes collect values from any number of goroutines.
type Notes[T any] struct {
	mu  sync.Mutex
	all []T
}

// Note adds a value.
func (n *Notes[T]) Note(v T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.all = append(n.all, v)
}

// Taken returns the values and forgets them.
func (n *Notes[T]) Taken() []T {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.all
	n.all = nil
	return all
}

// Until waits until done, which other goroutines make true. It ends the test, and prints the
// log if there is one, when that does not happen.
func Until(tb testing.TB, what string, done func() bool, log ...*Log) {
	tb.Helper()
	late, poll := time.After(patience), time.Tick(2*time.Millisecond)
	for !done() {
		select {
		case <-late:
			tb.Fatalf("it does not happen that %s; log: %s", what, log)
		case <-poll:
		}
	}
}

// ShortDir returns a directory of the test whose path is short enough for a socket.
func ShortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "x") //nolint:usetesting // that of tb is too long for a socket
	OK(tb, err)
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
