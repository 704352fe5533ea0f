package program

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

const secret = "hunter2hunter2"

// A signal that is repeated at once is the first one: it does not end the daemon before it
// has drained.
func TestSignalThatIsRepeatedAtOnceCountsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal, 2)
		ended, again := 0, make(chan os.Signal, 1)
		go func() { again <- second(signals, func() { ended++ }) }()
		for range 3 {
			signals <- syscall.SIGTERM
			time.Sleep(oneSignal/3 - 1)
		}
		synctest.Wait()
		nodetest.Equal(t, "first and second signals", []int{ended, len(again)}, []int{1, 0})
		time.Sleep(oneSignal)
		signals <- os.Interrupt
		nodetest.Equal(t, "second signal", <-again, os.Interrupt)
	})
}

func TestPauseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	nodetest.Equal(t, "it lasts", Pause(ctx, time.Nanosecond), true)
	cancel()
	nodetest.Equal(t, "it lasts without its context", Pause(ctx, time.Hour), false)
}

// A configuration file that is not a regular file is refused at once, with its path. A
// link to a regular file, as in a mounted ConfigMap, is read.
func TestConfigurationFileMustBeARegularFile(t *testing.T) {
	t.Parallel()
	n := nodetest.New(t)
	nodetest.OK(t, unix.Mkfifo(n.Path("fifo"), 0o600))
	n.Write("data/conf", "{}")
	nodetest.OK(t, os.Symlink("data/conf", n.Path("link")))
	for _, name := range []string{"fifo", "data", "absent"} {
		if _, err := ReadFile(n.Path(name)); err == nil || !strings.Contains(err.Error(), n.Path(name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if text, err := ReadFile(n.Path("link")); err != nil || string(text) != "{}" {
		t.Errorf("%q, %v", text, err)
	}
}

func TestDecodeRefusesWhatIsNotAsked(t *testing.T) {
	t.Parallel()
	for text, why := range map[string]string{`{"a":1}`: "", `{"b":1}`: `"b"`, `{"a":1}{}`: "after top-level value", `{`: "EOF", `{"a":"x"}`: "a"} {
		var v struct {
			A int `json:"a"`
		}
		if err := Decode([]byte(text), &v); (err == nil) != (why == "") || err != nil && !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestValuesOfKeysAreChecked(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`dir "run" is not an absolute path`:      Absolute("dir", "run"),
		`level "loud" is none of ["low" "high"]`: OneOf("level", "loud", "low", "high"),
		"limit -1 is negative":                   NotNegative("limit", -1),
		"wait -1s is negative":                   NotNegative("wait", -time.Second),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := errors.Join(Absolute("dir", ""), Absolute("dir", "/run"), OneOf("level", "low", "low", "high"), NotNegative("rate", 0.0)); err != nil {
		t.Error(err)
	}
}

// The number and the length of logged lines are limited, so that a plugin cannot fill the
// disk, and no line has a part of a secret.
func TestStderrIsCapped(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxLine)
	for name, tt := range map[string]struct {
		writes []string
		want   []string
	}{
		"nothing":           {nil, nil},
		"lines":             {[]string{"a\nb\n"}, []string{"a", "b"}},
		"a line in pieces":  {[]string{"a", "b", "\n", "c"}, []string{"ab", "c"}},
		"empty lines":       {[]string{"\n\n  \n\r\n"}, nil},
		"a long line":       {[]string{long + long + "\ny\n"}, []string{long + "...", "y"}},
		"many lines":        {[]string{strings.Repeat("x\n", 10*maxLines)}, append(strings.Fields(strings.Repeat("x ", maxLines)), "")},
		"much text":         {[]string{strings.Repeat(long, 2*maxLines)}, []string{long + "...", ""}},
		"a secret":          {[]string{"password " + secret + "\n"}, []string{"password (hidden)"}},
		"a secret in parts": {[]string{"password " + secret[:5], secret[5:] + "\n"}, []string{"password (hidden)"}},
		"what is no secret": {[]string{"network blue-net\n"}, []string{"network blue-net"}},
	} {
		var w stderr
		for _, text := range tt.writes {
			if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
				t.Errorf("%s: wrote %d: %v", name, n, err)
			}
		}
		nodetest.Equal(t, name, logged(t, w.String()), tt.want)
	}
	for n := range 3 * len(secret) {
		for _, end := range []int{maxLine - n, maxText - n} { // wherever a line, or the text, is cut
			if got := strings.Join(logged(t, strings.Repeat("x", end)+strings.Repeat(secret, 3)), ""); strings.Contains(got, "hunt") || got == "" {
				t.Fatalf("logged %s", got)
			}
		}
	}
}

// logged returns the lines that are logged of what a plugin has written.
func logged(t *testing.T, text string) (lines []string) {
	t.Helper()
	var b strings.Builder
	logStderr(t.Context(), NewLogger(&b, slog.LevelInfo, true), []byte(`{"name":"blue-net","x":["`+secret+`"]}`), text)
	for line := range strings.Lines(b.String()) {
		var keys struct{ Text string }
		nodetest.OK(t, json.Unmarshal([]byte(line), &keys))
		lines = append(lines, keys.Text)
	}
	return lines
}
