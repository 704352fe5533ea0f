package webhook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// readAll is a handler that reads requests, and answers 503 if that fails. It tells asked of
// each that it has read, and then waits for answer.
func readAll(asked, answer chan bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		asked <- true
		<-answer
	})
}

// send sends a request to h, and returns the code and the text of the answer.
func send(ctx context.Context, h http.Handler, body io.Reader) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/validate", body))
	return w.Code, w.Body.String()
}

// While as many requests as allowed are served, others wait, until their client goes.
func TestRequestsAtOnceAreLimited(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	h := newLimited(readAll(asked, answer), 2, 100)
	send := func(ctx context.Context) int {
		code, _ := send(ctx, h, strings.NewReader("x"))
		return code
	}
	codes := make(chan int, 3)
	for range 2 {
		go func() { codes <- send(t.Context()) }()
		<-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	nodetest.Equal(t, "code of one that is gone while it waits", send(ctx), http.StatusServiceUnavailable)
	go func() { codes <- send(t.Context()) }()
	answer <- true
	<-asked
	close(answer)
	for range 3 {
		nodetest.Equal(t, "code", <-codes, http.StatusOK)
	}
	if room, turns := h.room.Load(), len(h.turn); room != 100 || turns != 0 {
		t.Errorf("at the end %d bytes and %d turns", room, turns)
	}
}

// Clients that are slow to send their request, however many, keep no other one waiting.
func TestSlowClientsKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // if they do
	defer cancel()
	h := newLimited(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}), 2, 100)
	send := func(body io.Reader) int {
		code, _ := send(ctx, h, body)
		return code
	}
	const slow = 5
	var rest []*io.PipeWriter
	codes := make(chan int, slow)
	for range slow {
		r, w := io.Pipe()
		rest = append(rest, w)
		go func() { codes <- send(r) }()
		if _, err := io.WriteString(w, "be"); err != nil { // returns when it is read
			t.Fatal(err)
		}
	}
	nodetest.Equal(t, "code", send(strings.NewReader("all")), http.StatusOK)
	for _, w := range rest {
		_, _ = io.WriteString(w, "gin")
		_ = w.Close()
	}
	for range slow {
		nodetest.Equal(t, "code", <-codes, http.StatusOK)
	}
}

// Requests for which there is no room get an error, and the next one is served when the
// others have gone.
func TestRequestsForWhichThereIsNoRoom(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	h := newLimited(readAll(asked, answer), 2, 10)
	send := func(size int) int {
		code, _ := send(t.Context(), h, strings.NewReader(strings.Repeat("x", size)))
		return code
	}
	first := make(chan int)
	go func() { first <- send(6) }()
	<-asked
	nodetest.Equal(t, "code of 12 bytes", send(6), http.StatusServiceUnavailable)
	second := make(chan int)
	go func() { second <- send(4) }()
	<-asked
	close(answer)
	if codes := [2]int{<-first, <-second}; codes != [2]int{http.StatusOK, http.StatusOK} || h.room.Load() != 10 {
		t.Errorf("codes %v, room %d", codes, h.room.Load())
	}
}

// A server has room for the largest requests, and not for more than it should hold.
func TestServerHasRoomForSoMuch(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool, 1), make(chan bool, 1)
	answer <- true
	for size, code := range map[int]int{maxBody: http.StatusOK, room + 1: http.StatusServiceUnavailable} {
		got, _ := send(t.Context(), pages(readAll(asked, answer), nil), io.LimitReader(zeros{}, int64(size)))
		nodetest.Equal(t, fmt.Sprintf("code of %d bytes", size), got, code)
	}
}

// zeros has bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// An API server that finds the webhook busy goes on without it.
func TestBusyHandler(t *testing.T) {
	t.Parallel()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/validate", strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	var seen []Event
	newLimited(Handler{Observer: func(e Event) { seen = append(seen, e) }}, 1, 1).ServeHTTP(w, r)
	if w.Code != http.StatusServiceUnavailable || len(seen) != 1 || seen[0].Outcome != "failed" {
		t.Errorf("%d %s, events %v", w.Code, w.Body, seen)
	}
}

// A request that has no turn in time gets an error instead of an answer that is too late.
func TestRequestsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, answer := make(chan bool), make(chan bool)
		h := newLimited(readAll(asked, answer), 1, 100)
		first := make(chan int)
		go func() {
			code, _ := send(t.Context(), h, strings.NewReader("x"))
			first <- code
		}()
		<-asked
		start := time.Now()
		if code, text := send(t.Context(), h, strings.NewReader("x")); code != http.StatusServiceUnavailable || !strings.Contains(text, errBusy.Error()) {
			t.Errorf("the second: %d %s", code, text)
		}
		nodetest.Equal(t, "waited for", time.Since(start), patience)
		answer <- true
		nodetest.Equal(t, "code of the first", <-first, http.StatusOK)
	})
}
