package shim

import (
	"io"
	"net/http"
	"testing"
)

// BenchmarkRoundTrip is an ADD and a DEL of one process, with a server of
// net/http in the same.
func BenchmarkRoundTrip(b *testing.B) {
	socket := newHTTP(b, func(w http.ResponseWriter, r *http.Request) {
		if commandOf(r) == "ADD" {
			_, _ = io.WriteString(w, testResult)
		}
	})
	for _, command := range []string{"ADD", "DEL"} {
		b.Run(command, func(b *testing.B) {
			c := &Client{Socket: socket, Stdout: io.Discard}
			a := args()
			b.ReportAllocs()
			for b.Loop() {
				if err := c.Execute(b.Context(), command, a); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
