package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/rawjson"
)

// tokenRepeats is repeatedKey by encoding/json's own tokens.
func tokenRepeats(dec *json.Decoder) string {
	token, err := dec.Token()
	if err != nil {
		return ""
	}
	switch token {
	case json.Delim('{'):
		seen := map[string]bool{}
		for dec.More() {
			token, _ := dec.Token()
			key := token.(string)
			if seen[key] {
				if key == "" {
					return `""`
				}
				return key
			}
			seen[key] = true
			if inner := tokenRepeats(dec); inner != "" {
				return joinKey(key, inner)
			}
		}
		_, _ = dec.Token()
	case json.Delim('['):
		for i := 0; dec.More(); i++ {
			if inner := tokenRepeats(dec); inner != "" {
				return joinKey(fmt.Sprintf("[%d]", i), inner)
			}
		}
		_, _ = dec.Token()
	}
	return ""
}

// FuzzScan compares what the scanner finds in valid JSON with encoding/json.
func FuzzScan(f *testing.F) {
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":%d`, i, i)
	}
	for _, seed := range []string{
		`{}`, `[]`, `null`, ` { "a" : [ ] , "b" : { } } `, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`, `{"":0,"":1}`,
		`{"a":[{"b":1},{"b":{"c":1,"c":2}}]}`, `{"a":"\"}{][,","b":"\\"}`, `[[],[{}],[1,-2.5e3,true,false,null]]`,
		`{"\ud800":1,"\udc00":2}`, "{\"\u2028\":\"<>&\",\"é\":\"\x7f\"}", `{"a":{"a":{"a":[1,[2,[3]]]}}}`,
		`{` + strings.Join(many, ",") + `}`, `{` + strings.Join(many, ",") + `,"k2":0}`, `{` + strings.Join(many, ",") + `,"k39":0}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if !json.Valid([]byte(text)) || !utf8.ValidString(text) {
			return
		}
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		want := tokenRepeats(dec)
		s, left := rawjson.Scan([]byte(text)), math.MaxInt
		if got := repeatedKey(&s, false, &left); got != want {
			t.Fatalf("%s: repeated %q, want %q", text, got, want)
		}
		if left := s.Space(); want == "" && left != 0 {
			t.Fatalf("%s: left %q", text, left)
		}
		var keys map[string]json.RawMessage
		if want != "" || json.Unmarshal([]byte(text), &keys) != nil || keys == nil {
			return
		}
		maps.DeleteFunc(keys, func(key string, raw json.RawMessage) bool { keys[key] = compact(raw); return false })
		if diff := cmp.Diff(object(keys), splitObject([]byte(text))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		for key := range keys {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(key); err != nil {
				t.Fatal(err)
			}
			if want, got := strings.TrimSuffix(out.String(), "\n"), string(encodeString(key)); got != want {
				t.Errorf("%q written as %s, want %s", key, got, want)
			}
		}
	})
}
