package resident

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/fault"
)

// maxRelaunch is the longest pause before a resident is launched again.
const maxRelaunch = time.Minute

// A file is an executable of Dir that is launched as a resident.
type file struct {
	path string
	info Info // index and name
}

// named returns the index and the name in a file name.
func named(base string) (Info, error) {
	if len(base) > 3 && base[2] == '-' {
		if i := (Info{Index: base[:2], Name: base[3:]}); isIndex(i.Index) && isName(i.Name) {
			return i, nil
		}
	}
	return Info{}, fmt.Errorf("%w: its name is not two digits, a dash and a name of letters, digits and _ . + -", errSkipped)
}

func (f file) status() Status {
	return Status{Info: f.info, Path: f.path, UID: -1}
}

// failed returns the status of a file that does not serve.
func (f file) failed(err error) Status {
	state := Refused
	if errors.Is(err, errSkipped) {
		state = Skipped
	}
	return f.status().as(state, err)
}

// supervise launches a resident, again each time it ends. It calls settled once,
// when the resident has registered or failed to for the first time.
func (h *Host) supervise(ctx context.Context, f file, settled func()) {
	first := orDefault(h.relaunch, time.Second)
	settled = sync.OnceFunc(settled)
	for wait := first; ; wait = min(2*wait, maxRelaunch) {
		h.launch(ctx, f, func(err error) {
			if err == nil {
				wait = first
			} else {
				h.note(f.failed(err))
			}
			settled()
		})
		if first < 0 || !pause(ctx.Done(), wait) {
			return
		}
	}
}

// launch launches a resident and returns when its process has ended.
func (h *Host) launch(ctx context.Context, f file, settled func(error)) {
	p, conn, err := h.start(f)
	if err != nil {
		err = fault.Of("launch", f.info.String(), err)
		h.observe(f.failed(err))
		settled(err)
		return
	}
	h.tasks.Go(func() {
		<-p.exited
		_ = conn.Close() // its children may hold the other end
	})
	c := candidate{Status: f.status(), conn: conn, settled: settled, bury: p.end}
	c.PID = p.pid
	h.attend(ctx, c)
}
