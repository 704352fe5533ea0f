// Package matrix runs conform with public CNI plugins. README.md is the table of what it
// found, with the reason why each finding is true by the specification, and issues has a
// draft of the issue for each cause.
package matrix
