package delegate

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"
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
