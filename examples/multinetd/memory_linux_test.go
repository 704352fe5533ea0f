package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Pages of the program are given back. What was written to them is not lost.
func TestPagesOfTheProgramAreGivenBack(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	clean, written := mapped(t, self), mapped(t, self)
	written[5]++
	want := [][]byte{bytes.Clone(clean), bytes.Clone(written)} // reads all of it
	for _, m := range [][]byte{clean, written} {
		if err := unix.Mprotect(m, unix.PROT_READ); err != nil {
			t.Fatal(err)
		}
	}
	releaseFiles()
	if kb := kilobytes(t, "/proc/self/smaps", fmt.Sprintf("%x-", unsafe.Pointer(&clean[0])), "Rss:"); kb != 0 { //nolint:gosec // its address only
		t.Errorf("%d kB are kept", kb)
	}
	if !bytes.Equal(clean, want[0]) || !bytes.Equal(written, want[1]) {
		t.Error("something that was written is lost")
	}
}

// Only mappings of the program that cannot be written to, and never were, are released.
func TestWhatIsReleased(t *testing.T) {
	t.Parallel()
	mapping := func(head, anonymous, swap string) string {
		return head + "\nSize:  8 kB\nAnonymous:  " + anonymous + " kB\nAnonHugePages:  0 kB\nSwap:  " + swap + " kB\nSwapPss:  0 kB\nVmFlags: rd\n"
	}
	var released []string
	release(strings.NewReader(
		mapping("1000-3000 r-xp 00000000 fd:00 42   /bin/multinetd", "0", "0")+
			mapping("3000-4000 r--p 00000000 fd:00 42   /bin/multinetd (deleted)", "0", "0")+
			mapping("4000-5000 r--p 00000000 fd:00 42   /bin/multinetd", "4", "0")+
			mapping("5000-6000 r--p 00000000 fd:00 42   /bin/multinetd", "0", "4")+
			mapping("6000-7000 rw-p 00000000 fd:00 42   /bin/multinetd", "0", "0")+
			mapping("7000-8000 r--s 00000000 fd:00 42   /bin/multinetd", "0", "0")+
			mapping("8000-9000 r--p 00000000 fd:00 43   /lib/a Anonymous: 0 kB", "0", "0")+
			mapping("9000-a000 r--p 00000000 00:00 0 ", "0", "0")+
			"a000-b000 r--p 00000000 fd:00 42   /bin/multinetd\nAnonymous:  0 kB\n", // a kernel without swap
	), 42, func(from, to uintptr) { released = append(released, fmt.Sprintf("%x-%x", from, to)) })
	if diff := cmp.Diff([]string{"1000-3000", "3000-4000"}, released); diff != "" {
		t.Error(diff)
	}
}

// mapped returns the file at path as memory of this process alone.
func mapped(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(m) })
	return m
}

// kilobytes returns the number that follows the keys, one after another, in a file.
func kilobytes(t *testing.T, path string, keys ...string) int {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for _, key := range keys {
		_, text, _ = strings.Cut(text, key)
	}
	n, err := strconv.Atoi(strings.Fields(text + " none")[0])
	if err != nil {
		t.Fatalf("%s: no %q", path, keys)
	}
	return n
}
