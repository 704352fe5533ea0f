package delegate

import (
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What was printed in time is kept, however late it is read, and a writer that
// never stops does not make it more.
func TestLateReaderGetsWhatIsInThePipe(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 30000)
	for _, tt := range []struct {
		name    string
		endless bool
	}{{"held", false}, {"written to without end", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.WriteString(text); err != nil {
				t.Fatal(err)
			}
			var writer sync.WaitGroup
			if tt.endless {
				writer.Go(func() {
					for err := error(nil); err == nil; {
						_, err = w.WriteString(text)
					}
				})
			}
			if err := r.SetReadDeadline(time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			collect(r, func(b []byte) { got.Write(b) })
			r.Close()
			w.Close()
			writer.Wait()
			if n := got.Len(); n < len(text) || (!tt.endless && n > len(text)) || n > 1<<20 {
				t.Errorf("%d bytes were read, %d had been written", n, len(text))
			}
		})
	}
}

// A process that is gone is not mistaken for the one that has its number now.
func TestKillTreeSparesANumberThatIsAnothers(t *testing.T) {
	t.Parallel()
	c, err := (&Process{}).start(t.Context(), "/bin/true", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	if err := c.reap(); err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), "cat")
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	killTree(os.Getpid(), c.pidfd) // other is a child of this process
	stdin.Close()
	if err := other.Wait(); err != nil {
		t.Errorf("another's child: %v", err)
	}
	if err := unix.PidfdSendSignal(c.pidfd, 0, nil, 0); err == nil {
		t.Error("the process is not gone")
	}
}
