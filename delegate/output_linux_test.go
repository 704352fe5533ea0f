package delegate_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
)

// A plugin that prints without end is stopped; so is one that then exits well.
func TestStdoutIsCapped(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"without end":    `while :; do echo 0123456789abcdef; done`,
		"and exits well": `trap 'exit 0' TERM PIPE; i=0; while [ $i -lt 100 ]; do echo 0123456789abcdef; i=$((i+1)); done; exit 0`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := (&delegate.Process{MaxStdout: 1000}).ExecPlugin(t.Context(), script(t, body), nil, nil)
			if err == nil || !strings.Contains(err.Error(), "more than 1000 bytes on stdout") {
				t.Errorf("err = %v", err)
			}
		})
	}
	out, err := (&delegate.Process{MaxStdout: 5}).ExecPlugin(t.Context(), script(t, `printf 12345`), nil, nil)
	if err != nil || string(out) != "12345" {
		t.Errorf("exactly the limit: %q, %v", out, err)
	}
	big := strings.Repeat("x", 1<<20)
	out, err = new(delegate.Process).ExecPlugin(t.Context(), "/bin/cat", []byte(big), nil)
	if err != nil || string(out) != big {
		t.Errorf("%d bytes of 1 MiB came back: %v", len(out), err)
	}
}

// closer lets go of a file when a line has come.
type closer struct {
	lines bytes.Buffer
	file  *os.File
}

func (c *closer) Write(b []byte) (int, error) {
	c.lines.Write(b)
	if bytes.Contains(c.lines.Bytes(), []byte("\n")) {
		c.file.Close()
	}
	return 0, io.ErrClosedPipe // that is none of the plugin's concern
}

// Stderr is passed on while the plugin runs: this one only ends when it was.
func TestStderrIsStreamed(t *testing.T) {
	t.Parallel()
	hold, release := pipe(t)
	stderr := &closer{file: release}
	out, err := (&delegate.Process{Stderr: stderr}).ExecPlugin(delegate.WithFiles(t.Context(), hold), script(t, `
		echo working >&2
		read line <&3
		echo '{}'`), nil, nil)
	if err != nil || string(out) != "{}\n" || stderr.lines.String() != "working\n" {
		t.Errorf("printed %q, stderr %q: %v", out, &stderr.lines, err)
	}
}

func TestStderrIsCapped(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	input := bytes.Repeat([]byte("0123456789abcde\n"), 1<<17) // 2 MiB
	_, err := (&delegate.Process{Stderr: &stderr}).ExecPlugin(t.Context(), script(t, `cat >&2; echo done >&2; exit 4`), input, []string{"PATH=" + os.Getenv("PATH")})
	if stderr.Len() != 1<<20 {
		t.Errorf("%d bytes passed on, want 1 MiB", stderr.Len())
	}
	if err == nil || !strings.Contains(err.Error(), `exit status 4, without an error object on stdout; last line on stderr: "done"`) {
		t.Errorf("err = %v", err)
	}
}

// A stderr that nobody takes is waited for no longer than WaitDelay.
func TestBlockedStderrDoesNotBlock(t *testing.T) {
	t.Parallel()
	r, w := io.Pipe() // nobody reads
	defer r.Close()
	out, err := (&delegate.Process{Stderr: w, WaitDelay: 1}).ExecPlugin(t.Context(), script(t, `echo hello >&2; echo '{}'`), nil, nil)
	if err != nil || string(out) != "{}\n" {
		t.Errorf("printed %q: %v", out, err)
	}
}

// What a plugin says when it fails is kept; what it was given is not.
func TestErrorOfAProcessSaysWhatThePluginSaid(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 5000)
	conf := `{"name":"blue","type":"p","password":"` + secret + `","long":"` + long + `","nested":{"key":"` + secret + `2"}}`
	tests := []struct {
		name, body string
		code       uint
		want       string // in the text
	}{
		{"error object", `echo '{"code":105,"msg":"no device","details":"8 in use"}'; exit 1`, 105, "no device"},
		{"error object after noise", `echo loading; echo '{}'; printf '{\n  "code": 105,\n  "msg": "no device"\n}\n'; exit 1`, 105, "no device"},
		{"error object after the configuration", `cat; echo; echo '{"code":105,"msg":"no device"}'; exit 1`, 105, "no device"},
		{"error object without a code", `echo '{"msg":"no device"}'; exit 1`, 0, "no device"},
		{"nothing", `exit 3`, 0, "exit status 3, without an error object on stdout"},
		{"words on stderr", `echo first >&2; echo 'cannot open device' >&2; exit 3`, 0, `last line on stderr: "cannot open device"`},
		{"empty object", `echo '{}'; exit 3`, 0, "exit status 3"},
		{"signal", `kill -9 $$`, 0, "signal: killed"},
		{"configuration on stdout", `cat; exit 3`, 0, "exit status 3"},
		{"configuration on stderr", `cat >&2; exit 3`, 0, "exit status 3"},
		{"words and configuration on stderr", `printf 'cannot parse ' >&2; cat >&2; exit 3`, 0, "exit status 3"},
		{"secret on stderr", `echo "password=` + secret + ` is wrong" >&2; exit 3`, 0, `"password=(hidden) is wrong"`},
		{"secret in a quoted line", `echo '  "password": "` + secret + `",' >&2; exit 3`, 0, "(hidden)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := new(delegate.Process).ExecPlugin(t.Context(), script(t, tt.body), []byte(conf), []string{"PATH=" + os.Getenv("PATH")})
			if got := (&delegate.Error{Err: err}).CNICode(); got != tt.code || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Errorf("code %d, want %d and %q: %v", got, tt.code, tt.want, err)
			}
			for _, text := range tree(err) {
				if leaks(text) || strings.Contains(text, "xxxx") {
					t.Errorf("a secret is in %q", text)
				}
			}
		})
	}
}
