package redact

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A value is hidden in each form in which plugins are known to repeat it, and
// what says which plugin it is about is not.
func TestEveryFormOfAValueIsHidden(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, conf, text, values, credentials string }{
		{"a string", `{"path":"/run/one-path"}`, "no /run/one-path", "no (hidden)", "no /run/one-path"},
		{"too harmless to hide", `{"monkey":"false","author":true,"keyboard":"eth0"}`, "false true eth0", "false true eth0", "false true eth0"},
		{"a credential", `{"authToken":"hunter2-hunter2"}`, "got hunter2-hunter2", "got (hidden)", "got (hidden)"},
		{"all of it", `{"a":1}` + "\n", `got {"a":1}`, "got (hidden)", "got (hidden)"},
		{"a number", `{"id":123456,"api-key":9007199254740993}`, "123456 of 9007199254740993", "(hidden) of (hidden)", "123456 of (hidden)"},
		{"too short to hide", `{"password":"abcde","id":12345}`, "abcde 12345", "abcde 12345", "abcde 12345"},
		{"a line", `{"privateKey":"line one 1\n  line two 2\n"}`, "x line two 2", "x (hidden)", "x (hidden)"},
		{"deep", `{"secrets":[{"of":{"x":"hunter2-hunter2"}}]}`, "hunter2-hunter2", Hidden, Hidden},
		{"a key that is no value", `{"hunter2-hunter2":true}`, "hunter2-hunter2", "hunter2-hunter2", "hunter2-hunter2"},
		{"name, type, version", `{"name":"storage","type":"bridge","cniVersion":"1.1.0"}`, "storage bridge 1.1.0", "storage bridge 1.1.0", "storage bridge 1.1.0"},
		{"what the runtime adds", `{"prevResult":{"ips":["fd00::1234"]},"cni.dev/valid-attachments":[{"containerID":"c12345"}]}`, "fd00::1234 of c12345", "fd00::1234 of c12345", "fd00::1234 of c12345"},
		{"quoted as Go", `{"password":"a\"quote<\\\t"}`, `x "a\"quote<\\\t"`, `x "(hidden)"`, `x "(hidden)"`},
		{"quoted as JSON for HTML", `{"password":"a&b&c&d"}`, `x "a\u0026b\u0026c\u0026d"`, `x "(hidden)"`, `x "(hidden)"`},
		{"written for HTML", `{"password":"a\u0026b\u0026c\u0026d"}`, `"a\u0026b\u0026c\u0026d", "a&b&c&d"`, `"(hidden)", "(hidden)"`, `"(hidden)", "(hidden)"`},
		{"as it is written", `{"password":"h\u00fcnter2\/\u00FC"}`, `h\u00fcnter2\/\u00FC is hünter2/ü`, "(hidden) is (hidden)", "(hidden) is (hidden)"},
		{"in a string of JSON", `{"config":"{\"password\":\"hunter2-\\u0026hunter2\",\"n\":1234567}"}`, `hunter2-&hunter2 hunter2-\u0026hunter2 1234567`, "(hidden) (hidden) (hidden)", "(hidden) (hidden) 1234567"},
		{"in a list in a string", `{"config":" [\"hunter2-hunter2\"]"}`, "hunter2-hunter2", Hidden, "hunter2-hunter2"},
		{"the longer of two", `{"a":"hunter2-hunter2","b":"hunter2"}`, "hunter2-hunter2 hunter2", "(hidden) (hidden)", "hunter2-hunter2 hunter2"},
		{"no JSON", `{"password":`, `got {"password":`, "got (hidden)", "got (hidden)"},
		{"nothing", ``, "text", "text", "text"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := Values([]byte(tt.conf)).Hide(tt.text); got != tt.values {
				t.Errorf("Values: %q, want %q", got, tt.values)
			}
			if got := Credentials([]byte(tt.conf)).Hide(tt.text); got != tt.credentials {
				t.Errorf("Credentials: %q, want %q", got, tt.credentials)
			}
		})
	}
}

// A key names a credential if it has one of the words anywhere in it, in any case.
func TestKeysOfCredentials(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		"pass", "Password", "db_passwd", "passphrase", "pwd", "adminPwd", "auth", "AUTHORIZATION", "basic-auth", "bearer", "X-Bearer",
		"key", "apiKey", "private_key", "keys", "psk", "wpaPSK", "secret", "clientSecret", "token", "authToken", "credentials", "creds",
	} {
		conf := fmt.Appendf(nil, `{"type":"bridge","a":[{%q:{"deep":["hunter2-hunter2"]}}]}`, key)
		if got := Credentials(conf).Hide("got hunter2-hunter2"); got != "got (hidden)" {
			t.Errorf("%s: %s", key, got)
		}
	}
	for _, key := range []string{"bridge", "mtu", "subnet", "capabilities", "ipam", "master", "user", "dns", "ranges", "path"} {
		conf := fmt.Appendf(nil, `{%q:"harmless"}`, key)
		if got := Credentials(conf).Hide("is harmless"); got != "is harmless" {
			t.Errorf("%s: %s", key, got)
		}
	}
}

// Every page that says what is hidden names the words, in one order.
func TestPagesNameTheWords(t *testing.T) {
	t.Parallel()
	words := Words()
	want := strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	for _, page := range []string{"README.md", ".github/SECURITY.md", "delegate/error.go", "delegate/thick/shim/shim.go", "examples/multinet/daemon/README.md"} {
		data, err := os.ReadFile(filepath.Join("../..", page))
		if err != nil {
			t.Fatal(err)
		}
		text := strings.Join(strings.Fields(strings.NewReplacer("`", "", "//", "").Replace(string(data))), " ")
		if !strings.Contains(text, want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
}

// Nothing that is hidden is longer than Longest says: a text that keeps so many
// bytes before it is cut has no part of a value.
func TestLongestBoundsWhatIsHidden(t *testing.T) {
	t.Parallel()
	conf := fmt.Appendf(nil, `{"a":"%s","b":"&&&&&&&&"}`, strings.Repeat("x", 100))
	h := Values(conf)
	quoted, err := json.Marshal(string(conf))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(conf), strings.Trim(string(quoted), `"`), `\u0026\u0026\u0026\u0026\u0026\u0026\u0026\u0026`} {
		if h.Hide(text) != Hidden || len(text) > h.Longest() {
			t.Errorf("%d bytes, Longest is %d: %s", len(text), h.Longest(), h.Hide(text))
		}
	}
	if n := Values(nil).Longest(); n != 0 {
		t.Errorf("of nothing: %d", n)
	}
}

// No value survives in a text, however it is embedded, unless the text has parts
// of it around it.
func FuzzValues(f *testing.F) {
	f.Add("hunter2", "password is ", " and more")
	f.Add("line one\nline two", "", "\x00")
	f.Add(`quo"ted\`, `{"a":`, "}")
	f.Add("<&> ä \u2028", "hunter", "2")
	f.Add(`{"password":"\u0026\`, `{"a":["b"]}`, `"`)
	f.Fuzz(func(t *testing.T, secret, before, after string) {
		_ = Values([]byte(before)).Hide(secret) // does not panic
		conf, err := json.Marshal(map[string]any{"type": "p", "nested": []any{map[string]string{"key": secret}}})
		if err != nil {
			t.Fatal(err)
		}
		var parsed struct{ Nested []map[string]string }
		if err := json.Unmarshal(conf, &parsed); err != nil {
			t.Fatal(err)
		}
		if secret = parsed.Nested[0]["key"]; len(secret) < MinSecret { // as the plugin got it: valid UTF-8
			return
		}
		hide := Values(conf).Hide
		if got := hide(secret); got != Hidden {
			t.Fatalf("%q alone became %q", secret, got)
		}
		// Where a second copy overlaps the first, one is hidden and parts of the other remain.
		text := before + secret + after
		if got := hide(text); strings.Count(text, secret) == 1 && !strings.Contains(Hidden, secret) && strings.Contains(got, secret) && !strings.Contains(got, Hidden) {
			t.Fatalf("%q is in %q", secret, got)
		}
	})
}
