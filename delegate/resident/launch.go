package resident

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// maxRelaunch is the longest pause before a resident is launched again.
const maxRelaunch = time.Minute

// A file is an executable of Dir that is a resident.
type file struct {
	path string
	info Info // index and name
}

// named returns the index and the name in the name of a file.
func named(base string) (Info, error) {
	if len(base) > 3 && base[2] == '-' {
		if i := (Info{Index: base[:2], Name: base[3:]}); isIndex(i.Index) && isName(i.Name) {
			return i, nil
		}
	}
	return Info{}, fmt.Errorf("%w: its name is not two digits, a dash and a name of letters, digits and _ . + -", ErrSkipped)
}

// failed is the status of a resident that has not been launched, or does not
// serve, for err.
func (f file) failed(err error) Status {
	s := Status{Info: f.info, State: Refused, Source: Launched, Path: f.path, UID: -1, Since: time.Now(), Err: err}
	if errors.Is(err, ErrSkipped) {
		s.State = Skipped
	}
	return s
}

// skip notes and tells that a file of Dir is not launched.
func (r *Host) skip(ctx context.Context, base string, info Info, err error) {
	f := file{filepath.Join(r.Dir, base), info}
	s := f.failed(&Error{Op: "launch", Which: fmt.Sprintf("%.100q", base), Err: err})
	r.note(s)
	r.observe(ctx, s)
}

// supervise launches a resident, and launches it again when it has ended. settled
// is called once, when it has registered or failed to the first time.
func (r *Host) supervise(ctx context.Context, f file, settled func()) {
	first := orDefault(r.Relaunch, time.Second)
	settled = sync.OnceFunc(settled)
	for wait := first; ; wait = min(2*wait, maxRelaunch) {
		_ = r.launch(ctx, f, func(err error) { // it has been told and noted
			if err == nil {
				wait = first
			}
			settled()
		})
		if first < 0 || !pause(r.stopping, wait) {
			return
		}
	}
}

// launch launches a resident and returns when its process has ended. Why it did
// not serve is noted.
func (r *Host) launch(ctx context.Context, f file, settled func(error)) error {
	tell := settled
	settled = func(err error) {
		if err != nil {
			r.note(f.failed(err))
		}
		tell(err)
	}
	p, conn, err := r.start(f)
	if err == nil {
		if err = r.expect(conn, 0); err != nil {
			_ = conn.Close()
			p.end()
		}
	}
	if err != nil {
		err = &Error{Op: "launch", Which: f.info.String(), Err: err}
		if !errors.Is(err, ErrStopped) {
			r.observe(ctx, f.failed(err))
		}
		settled(err)
		return err
	}
	r.tasks.Go(func() {
		<-p.exited
		_ = conn.Close() // children of its own may hold the other end
	})
	return r.attend(ctx, candidate{
		conn: conn, source: Launched, want: &f.info, path: f.path, uid: p.uid, pid: p.pid, settled: settled, bury: p.end,
	})
}
