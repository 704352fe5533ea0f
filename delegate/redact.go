package delegate

import (
	"errors"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/redact"
)

// shownText is how many bytes of unexpected text an error quotes.
const shownText = 64

// redacted returns err without the secrets of stdin, the plugin's configuration. In the
// words of a plugin that printed an error object only credentials are hidden, in everything
// else each string and number of the configuration; see [Error.Error]. The code does not
// tell whether a plugin chose its words: package skel gives every plain error code 999.
func redacted(err error, stdin []byte) error {
	if errors.Is(err, ErrNotRun) {
		return err // these words are not a plugin's
	}
	var said *types.Error
	hider := redact.Credentials
	if !errors.As(err, &said) || said.Code == types.ErrUnknown {
		hider = redact.Values
	}
	hide := hider(stdin).Hide
	text := hide(err.Error())
	if text == err.Error() && !errors.Is(err, ErrNotUndone) {
		return err
	}
	if err == error(said) { //nolint:errorlint // one inside another error is the next case
		return types.NewError(said.Code, hide(said.Msg), hide(said.Details))
	}
	return &redactedError{text: text, err: err}
}

// A redactedError is err with another text. Nobody can unwrap err, but errors.Is
// and the code still work. [ErrNotUndone] is not in it: what a plugin in this process could
// not undo by itself, its DEL may undo yet.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }
func (e *redactedError) Is(target error) bool {
	return target != ErrNotUndone && errors.Is(e.err, target)
}
func (e *redactedError) CNICode() uint { return fault.Code(e.err, types.ErrUnknown) }

// noise quotes the beginning of text, which a plugin should not have printed. It
// stops where a configuration could begin, and hides the strings and numbers of
// stdin.
func noise(text, stdin []byte) string {
	shown := redact.Values(stdin).Hide(string(text)) // before it is cut: half a secret is not found
	if i := strings.IndexAny(shown, "{["); i >= 0 {
		shown = shown[:i]
	}
	if len(shown) == 0 {
		return "more JSON"
	}
	return strconv.Quote(shown[:min(len(shown), shownText)])
}

// Hidden returns the first limit bytes of text, which a plugin has written that was given the
// configuration conf: for a daemon's log, say. It hides each string and number of conf that has
// at least six bytes, except the name, type and version. If text is longer, its end is left out
// as far as a part of such a value could be there.
func Hidden(text string, conf []byte, limit int) string {
	hider := redact.Values(conf)
	shown := hider.Hide(text[:min(len(text), limit)])
	if len(text) > limit {
		shown = shown[:max(0, len(shown)-hider.Longest())]
	}
	return shown
}
