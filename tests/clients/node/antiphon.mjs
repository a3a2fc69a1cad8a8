// Where the server is, and how a message makes the scripted models play turns.
export const url = process.env.ANTIPHON_URL;
export const model = process.env.ANTIPHON_MODEL;
export const script = (...turns) => `Follow this. @@script ${JSON.stringify(turns)}`;
export const call = (city) => ({ call: 'get_weather', args: { city } });
