package durable

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// An order is a way to write a record: an order of system calls. It leaves the record
// in the file "record".
type order struct {
	name   string
	reuse  bool // write into the file "spare", which a DEL would keep
	noLock bool // the record's file is also the lock
	add    func(d *Dir, write func(name string, sync func(fd int) error) error) error
}

func none(int) error { return nil }

func orders() []order {
	type write = func(name string, sync func(fd int) error) error
	// kept writes into the spare file, and syncs it by sync.
	kept := func(sync func(fd int) error) func(*Dir, write) error {
		return func(d *Dir, write write) error {
			return first(func() error { return d.Rename("spare", ".tmp-record") }, func() error { return write(".tmp-record", sync) },
				func() error { return d.Rename(".tmp-record", "record") }, d.Sync)
		}
	}
	// inPlace renames the file before it syncs it.
	inPlace := func(sync func(fd int) error, last func(*Dir) error) func(*Dir, write) error {
		return func(d *Dir, write write) error {
			return first(func() error { return d.Rename("spare", "record") }, func() error { return write("record", sync) },
				func() error { return last(d) })
		}
	}
	nothing := func(*Dir) error { return nil }
	return []order{
		{name: "kept", reuse: true, add: kept(unix.Fsync)},
		{name: "present", add: func(d *Dir, write write) error {
			return first(func() error { return write(".tmp-record", unix.Fsync) }, func() error { return d.Rename(".tmp-record", "record") }, d.Sync)
		}},
		{name: "fdatasync", reuse: true, add: kept(unix.Fdatasync)},
		{name: "renamed-last", reuse: true, add: func(d *Dir, write write) error {
			return first(func() error { return d.Rename("spare", ".tmp-record") }, func() error { return write(".tmp-record", unix.Fsync) },
				d.Sync, func() error { return d.Rename(".tmp-record", "record") })
		}},
		{name: "one-file", reuse: true, noLock: true, add: inPlace(unix.Fsync, (*Dir).Sync)},
		{name: "no-dir-sync", reuse: true, add: inPlace(unix.Fsync, nothing)},
		{name: "data-only", reuse: true, add: inPlace(unix.Fdatasync, nothing)},
		{name: "syncfs", reuse: true, add: inPlace(unix.Syncfs, nothing)},
		{name: "no-sync", reuse: true, add: inPlace(none, nothing)},
	}
}

// first calls each of do until one fails.
func first(do ...func() error) error {
	for _, f := range do {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkOrders measures orders of the system calls that an ADD makes before the
// first plugin runs: the median time of each, in microseconds. The package uses the
// second: no faster one keeps a record through a loss of power. Each round measures all
// orders, because other programs that write slow a sync down. To choose the file
// system:
//
//	TMPDIR=/mnt go test -run '^$' -bench Orders -benchtime 300x ./internal/durable
func BenchmarkOrders(b *testing.B) {
	all := orders()
	dirs := make([]*Dir, len(all))
	plan, note := bytes.Repeat([]byte{'p'}, 1500), bytes.Repeat([]byte{'n'}, 400)
	for i, o := range all {
		d, err := OpenDir(b.TempDir(), nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(d.Close)
		if dirs[i] = d; o.reuse {
			if err := d.WriteFile("spare", make([]byte, 2000)); err != nil {
				b.Fatal(err)
			}
		}
	}
	times := make([][]time.Duration, len(all))
	for b.Loop() {
		for _, i := range rand.Perm(len(all)) {
			d, o := dirs[i], all[i]
			start := time.Now()
			err := first(func() error { return benchLock(d, o) }, func() error {
				return o.add(d, func(name string, sync func(fd int) error) error { return benchWrite(d, name, plan, sync) })
			})
			times[i] = append(times[i], time.Since(start))
			if err == nil {
				_, err = d.Overwrite("record", int64(len(plan)), note, 1<<20)
			}
			if err == nil && o.reuse {
				err = d.Rename("record", "spare")
			} else if err == nil {
				err = d.Remove("record")
			}
			if err == nil && !o.noLock {
				err = d.Remove("lock")
			}
			if err != nil {
				b.Fatal(o.name, err)
			}
		}
	}
	for i, o := range all {
		slices.Sort(times[i])
		b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds()), o.name+"-µs")
	}
}

// benchLock creates a lock's file and raises its mode, as package scratch does.
func benchLock(d *Dir, o order) error {
	if o.noLock {
		return nil
	}
	fd, _, err := d.OpenLock("lock", 0o400)
	if err != nil {
		return err
	}
	return first(func() error { return d.Chmod(fd, "lock", 0o600) }, func() error { return unix.Close(fd) })
}

// benchWrite writes data to the file name, syncs it by sync, and closes it.
func benchWrite(d *Dir, name string, data []byte, sync func(fd int) error) error {
	f, _, err := d.OpenFile(name)
	if err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return fmt.Errorf("%w, %w", err, f.Close())
	}
	return first(func() error { return sync(int(f.Fd())) }, f.Close)
}
