// Package museum replays outages of public issue trackers. Each is a short script of what a
// runtime and the machine did, and a question that is answered by looking at what is left.
// The same script runs with our examples and with the programs that people run today.
// README.md is the table of the answers.
package museum
