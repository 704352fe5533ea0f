package flock

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
)

// A note is the content of a lock's file. It says what [End] may kill after the holder's death,
// and is not synced: it counts only while the lock is held. An empty file says nothing.
type note struct {
	Namespaces string    `json:"namespaces"` // to which PIDs and times belong
	PID        int       `json:"pid"`        // the holder
	Group      int       `json:"group"`      // the holder's process group
	At         int64     `json:"at"`         // when the holder had the lock, in nanoseconds since boot
	Programs   []program `json:"programs"`   // that the holder has started and not reaped
}

// A program has inherited the lock and leads a process group. While it is being started, or where
// nobody says which process it is, PID is 0.
type program struct {
	PID int   `json:"pid"`
	At  int64 `json:"at"` // since when it may run; with a PID, a time at which it had that
}

func (n note) valid() bool {
	return n.PID > 0 && n.Group > 0 && n.At > 0 && n.Namespaces != "" &&
		!slices.ContainsFunc(n.Programs, func(p program) bool { return p.PID < 0 || p.PID == 1 || p.At <= 0 })
}

// readNote reads a note. What comes after it is of a longer one.
func readNote(f io.ReaderAt) (n note, ok bool) {
	const limit = 1 << 20
	err := json.NewDecoder(io.NewSectionReader(f, 0, limit)).Decode(&n)
	return n, err == nil && n.valid()
}

// text returns n as JSON and a newline.
func (n note) text() []byte {
	text, _ := json.Marshal(n) // cannot fail: numbers and strings
	return append(text, '\n')
}

type filesKey struct{}

// WithFiles returns a context with files that programs inherit, after those of an outer call.
func WithFiles(ctx context.Context, files ...*os.File) context.Context {
	return context.WithValue(ctx, filesKey{}, slices.Concat(Files(ctx), files))
}

// Files returns the files of [WithFiles].
func Files(ctx context.Context) []*os.File {
	files, _ := ctx.Value(filesKey{}).([]*os.File)
	return files
}

type notesKey struct{}

// notes writes the note of one held lock.
type notes struct {
	file *os.File

	mu   sync.Mutex // guards note, and the content of file
	note note
}

// WithNotes returns a context with which [Start] notes programs in file, the file of a lock
// that this process holds, and in those of an outer call. The file stays open as long as the
// context is used.
func WithNotes(ctx context.Context, file *os.File) context.Context {
	return context.WithValue(ctx, notesKey{}, slices.Concat(notesOf(ctx), []*notes{{file: file}}))
}

func notesOf(ctx context.Context) []*notes {
	all, _ := ctx.Value(notesKey{}).([]*notes)
	return all
}

// A Run is a program, from before its start until it was reaped.
type Run struct {
	in []*notes
	program
}

// Start notes that a program is about to be started. When it fails, the program must not be
// started: [End] would not know that it belongs to the operation.
func Start(ctx context.Context) (*Run, error) {
	r := &Run{program: program{At: sinceBoot()}}
	for _, n := range notesOf(ctx) {
		if err := n.start(r.program); err != nil {
			r.Ended()
			return nil, err
		}
		r.in = append(r.in, n)
	}
	return r, nil
}

// Is notes that the program runs as process pid, which leads its process group. Until then the
// program has got no input: one that needs input does nothing that nobody knows of.
func (r *Run) Is(pid int) {
	now := program{pid, sinceBoot()}
	for _, n := range r.in {
		n.replace(r.program, now)
	}
	r.program = now
}

// Ended notes that the program was reaped, or never ran.
func (r *Run) Ended() {
	for _, n := range r.in {
		n.replace(r.program)
	}
	r.in = nil
}

// start notes p, which has not begun. Where that is impossible, on a full disk, it empties the file:
// then nothing is known, and nobody is killed.
func (n *notes) start(p program) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.note.Programs = append(n.note.Programs, p)
	err := n.write()
	if err == nil || n.file.Truncate(0) == nil {
		return nil
	}
	n.note.Programs = n.note.Programs[:len(n.note.Programs)-1]
	return err
}

// replace notes by in place of p. Where that is impossible, p stays noted: it is another process
// by its time, or not known.
func (n *notes) replace(p program, by ...program) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i := slices.Index(n.note.Programs, p); i >= 0 {
		n.note.Programs = slices.Replace(n.note.Programs, i, i+1, by...)
	}
	_ = n.write()
}

// write writes the note. When this process is killed, a note of less than a page is there whole
// or not at all. A file that is not open for writing is not ours to write to.
func (n *notes) write() error {
	if n.note.PID == 0 {
		programs := n.note.Programs
		n.note = noteOfSelf()
		n.note.Programs = programs
	}
	if _, err := n.file.WriteAt(n.note.text(), 0); !errors.Is(err, syscall.EBADF) {
		return err
	}
	return nil
}
